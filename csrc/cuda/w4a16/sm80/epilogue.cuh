// Bias and activation in fp32, one rounding.
#pragma once

#include "cuda/tile/store_quad.cuh"
#include "cuda/w4a16/sm80/params.h"

namespace xgemm::cuda::w4a16::sm80 {

// Four neighbouring columns of D (those below n).
template <typename T>
__device__ inline void finish_row4(const Params& params, float (&x)[4], int64_t row,
                                   int64_t column) {
  const T* bias = static_cast<const T*>(params.bias);
  if (bias != nullptr) bias += column * params.bias_stride;
  T* d = static_cast<T*>(params.d) + row * params.d_row_stride + column * params.d_col_stride;
  finish_quad<T>({.to = d,
                  .stride = params.d_col_stride,
                  .count = params.n - column,
                  .vector = params.d_vector},
                 x, bias, params.bias_stride, params.activation);
}

}  // namespace xgemm::cuda::w4a16::sm80
