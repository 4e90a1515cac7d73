// From accumulators to D, or to split-K's partial sums.
#pragma once

#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::fp32 {

// The first element of a batch's operand. `stride` is the operand's member of BatchDim.
__device__ inline int64_t batch_offset(const Params& params, int64_t batch,
                                       int64_t BatchDim::* stride) {
  if (params.batch_dims == 0) return 0;
  int64_t offset = 0;
#pragma unroll 1
  for (int i = params.batch_dims - 1; i > 0; --i) {
    const BatchDim& dim = params.batch[i];
    offset += batch % dim.size * (dim.*stride);
    batch /= dim.size;
  }
  return offset + batch * (params.batch[0].*stride);
}

// One row's four neighbouring columns of D (those below n) from sums over k. Not inlined: a thread
// has tens of them.
__device__ __noinline__ inline void finish_row4(const Params& params, int64_t batch, float4 sums,
                                                int64_t row, int64_t column) {
  float x[4] = {sums.x, sums.y, sums.z, sums.w};
  const int columns = static_cast<int>(min(params.n - column, int64_t{4}));
  // alpha 0 means that A B does not count, not even where it is NaN (BLAS).
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = params.alpha == 0.0f ? 0.0f : params.alpha * x[i];
  if (params.beta != 0.0f) {
    const float* c = params.c + batch_offset(params, batch, &BatchDim::c) +
                     row * params.c_row_stride + column * params.c_col_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < columns) x[i] += params.beta * c[i * params.c_col_stride];
    }
  }
  if (params.bias != nullptr) {
    const float* bias =
        params.bias + row * params.bias_row_stride + column * params.bias_col_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < columns) x[i] += bias[i * params.bias_col_stride];
    }
  }
  if (params.activation != Activation::kNone) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = activate(params.activation, x[i]);
  }
  float* d = params.d + batch_offset(params, batch, &BatchDim::d) + row * params.d_row_stride +
             column * params.d_col_stride;
  if (params.d_vector && columns == 4) {
    *reinterpret_cast<float4*>(d) = {x[0], x[1], x[2], x[3]};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < columns) d[i * params.d_col_stride] = x[i];
  }
}

__device__ inline float4* partial_row4(const Params& params, int64_t plane, int64_t row,
                                       int64_t column) {
  return reinterpret_cast<float4*>(params.partials +
                                   (plane * params.m + row) * params.partial_stride + column);
}

}  // namespace xgemm::cuda::gemm::fp32
