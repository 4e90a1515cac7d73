// The tiles that the sm_90a kernel is compiled for: rows of X, rows of Y; and what its mainloop
// reaches of the tensor cores' rate at the clock that long products leave them, in percent (a fit,
// as the constants of select.cpp; products of some 10 us keep a clock that is a fifth higher).
#pragma once

// Of three products the sums need twice the registers.
#define XGEMM_TF32X3_TILES(TILE) \
  TILE(256, 128, 96)             \
  TILE(128, 192, 80)             \
  TILE(128, 128, 66)

#define XGEMM_TF32_TILES(TILE) \
  TILE(128, 256, 118)          \
  TILE(128, 192, 111)          \
  TILE(128, 128, 112)          \
  TILE(128, 64, 80)
