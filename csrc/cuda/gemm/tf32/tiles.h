// The tiles that the sm_90a kernel is compiled for: rows of X, rows of Y, CTAs of a cluster; and
// the share of the tensor cores' rate that its main loop reaches, in percent (a fit over 28 shapes
// on an H200, benchmarks/sweep_fp32.py; those 192 wide: between their neighbours).
#pragma once

// Of three products the sums need twice the registers.
#define XGEMM_TF32X3_TILES(TILE) \
  TILE(256, 128, 1, 88)          \
  TILE(128, 192, 1, 78)          \
  TILE(128, 128, 1, 69)          \
  TILE(128, 64, 1, 59)

#define XGEMM_TF32_TILES(TILE) \
  TILE(128, 256, 1, 88)        \
  TILE(128, 256, 2, 90)        \
  TILE(128, 192, 1, 83)        \
  TILE(128, 128, 1, 77)        \
  TILE(128, 64, 1, 52)
