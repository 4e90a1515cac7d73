// The tiles that the sm_90a kernel is compiled for: columns of D, stages of the ring, CTAs of a
// cluster. Its rows are always 128.
#pragma once

// One that is not a multiple of 64 wide takes a K-major B only.
#define XGEMM_SM90_TILES(TILE) \
  TILE(256, 4, 2)              \
  TILE(256, 4, 1)              \
  TILE(224, 4, 2)              \
  TILE(192, 5, 2)              \
  TILE(160, 5, 2)              \
  TILE(128, 6, 2)              \
  TILE(128, 6, 1)
