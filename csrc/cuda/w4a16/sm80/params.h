// What the host tells the sm_80 kernel.
#pragma once

#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16::sm80 {

struct Params {
  int64_t m, n;
  int k, units;           // ceil(k / 128)
  const uint8_t* weight;  // [weight_rows][row_bytes]
  int64_t weight_rows, row_bytes;
  int unit_bytes, strip_bytes;
  int group_quarters_log2;  // of a unit's quarters, 32 k each, that a group has
  bool per_channel, zeros, bf16_scales;
  const void* x;  // [m, k], rows x_row_stride elements apart, 16-byte aligned
  int64_t x_row_stride;
  const void* bias;  // or null
  int64_t bias_stride;
  Activation activation;
  void* d;
  int64_t d_row_stride, d_col_stride;
  bool d_vector;  // four columns of D are one aligned 8-byte store
  int stages;
  int splits;  // of K
  int units_per_split;
  float* partials;         // [splits, m, partial_stride], for splits > 1
  int64_t partial_stride;  // n, rounded up to 4
  int tiles_m, tiles_n;
};

}  // namespace xgemm::cuda::w4a16::sm80
