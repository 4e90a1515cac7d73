// What the host tells the kernels for a mixture of experts.
#pragma once

#include "cuda/w4a16/grouped/problem.h"
#include "cuda/w4a16/sm80/params.h"

namespace xgemm::cuda::w4a16::grouped {

struct Params {
  sm80::Params format;  // how units are read: what sm80::WarpMma asks for, and nothing else of it
  int experts, slots, row_divisor;
  int k, units;
  int64_t n, columns;     // of W, of y
  int column_blocks;      // tiles of columns for a tile of rows: 64 of W each, 256 by wgmma
  const uint8_t* weight;  // of expert 0
  int64_t expert_bytes, row_bytes;
  const void* x;
  int64_t x_row_stride;
  const int32_t* sorted;
  const void* bias;
  const int32_t* perm;  // of the fp32 kernel alone
  Activation activation;
  bool gated;  // a CTA's columns are 32 of the gate and the 32 that it multiplies
  void* y;
  bool y_vector;  // four columns of y are one aligned 8-byte store
  int stages;
};

// Of tiles of block_m rows; everything but that.
struct Instance {
  int block_m;
  int64_t tiles;
};

// The same by CTAs that take several tiles each.
struct Persistent {
  int block_m, ctas;
};

}  // namespace xgemm::cuda::w4a16::grouped
