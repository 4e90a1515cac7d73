// The tiles that the sm_90a kernel is compiled for: rows of X, rows of Y, CTAs of a cluster; and
// the share of the tensor cores' rate that its mainloop reaches, in percent (a fit, as the
// constants of select.cpp).
#pragma once

// Of three products the sums need twice the registers.
#define XGEMM_TF32X3_TILES(TILE) \
  TILE(256, 128, 1, 92)          \
  TILE(128, 192, 1, 77)          \
  TILE(128, 128, 1, 65)          \
  TILE(128, 64, 1, 60)

#define XGEMM_TF32_TILES(TILE) \
  TILE(128, 256, 1, 96)        \
  TILE(128, 256, 2, 95)        \
  TILE(128, 192, 1, 88)        \
  TILE(128, 128, 1, 90)        \
  TILE(128, 64, 1, 75)
