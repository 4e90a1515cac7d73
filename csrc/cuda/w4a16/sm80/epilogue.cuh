// Bias and activation in fp32, one rounding.
#pragma once

#include "cuda/tile/convert.cuh"
#include "cuda/w4a16/sm80/params.h"

namespace xgemm::cuda::w4a16::sm80 {

// Four neighbouring columns of D (those below n).
template <typename T>
__device__ inline void finish_row4(const Params& params, float (&x)[4], int64_t row,
                                   int64_t column) {
  const T* bias = static_cast<const T*>(params.bias);
  if (bias != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i < params.n) {
        x[i] += static_cast<float>(bias[(column + i) * params.bias_stride]);
      }
    }
  }
  if (params.activation != Activation::kNone) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = activate(params.activation, x[i]);
  }
  T* d = static_cast<T*>(params.d) + row * params.d_row_stride + column * params.d_col_stride;
  if (params.d_vector && column + 4 <= params.n) {
    *reinterpret_cast<uint2*>(d) = make_uint2(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i < params.n) d[i * params.d_col_stride] = round_to<T>(x[i]);
  }
}

}  // namespace xgemm::cuda::w4a16::sm80
