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

// Four neighbouring columns of C (those below n), where it is read.
__device__ inline float4 load_c4(const Params& params, int64_t batch, int64_t row, int64_t column) {
  float4 c = {0.0f, 0.0f, 0.0f, 0.0f};
  if (params.beta == 0.0f) return c;
  const float* from = params.c + batch_offset(params, batch, &BatchDim::c) +
                      row * params.c_row_stride + column * params.c_col_stride;
  const int64_t columns = params.n - column;
  c.x = from[0];
  if (columns > 1) c.y = from[params.c_col_stride];
  if (columns > 2) c.z = from[2 * params.c_col_stride];
  if (columns > 3) c.w = from[3 * params.c_col_stride];
  return c;
}

// One row's four neighbouring columns of D (those below n).
__device__ inline void store_d4(const Params& params, int64_t batch, float4 x, int64_t row,
                                int64_t column) {
  float* d = params.d + batch_offset(params, batch, &BatchDim::d) + row * params.d_row_stride +
             column * params.d_col_stride;
  const int64_t columns = params.n - column;
  if (params.d_vector && columns >= 4) {
    *reinterpret_cast<float4*>(d) = x;
    return;
  }
  d[0] = x.x;
  if (columns > 1) d[params.d_col_stride] = x.y;
  if (columns > 2) d[2 * params.d_col_stride] = x.z;
  if (columns > 3) d[3 * params.d_col_stride] = x.w;
}

// The same from sums over k, and C. Not inlined: a thread has tens of them.
__device__ __noinline__ inline void finish_row4(const Params& params, int64_t batch, float4 sums,
                                                float4 c, int64_t row, int64_t column) {
  float x[4] = {sums.x, sums.y, sums.z, sums.w};
  const float add[4] = {c.x, c.y, c.z, c.w};
  const int columns = static_cast<int>(min(params.n - column, int64_t{4}));
  // alpha 0 means that A B does not count, not even where it is NaN (BLAS).
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = params.alpha == 0.0f ? 0.0f : params.alpha * x[i];
  if (params.beta != 0.0f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] += params.beta * add[i];
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
  store_d4(params, batch, {x[0], x[1], x[2], x[3]}, row, column);
}

// A product, not a copy, even where D is the sums as they are: these would have to be in aligned
// quads of registers all along, which are the wrong banks for FMAs.
__device__ inline float4 scale4(float scale, float4 sums) {
  return {scale * sums.x, scale * sums.y, scale * sums.z, scale * sums.w};
}

__device__ __noinline__ inline void finish_row4(const Params& params, int64_t batch, float4 sums,
                                                int64_t row, int64_t column) {
  finish_row4(params, batch, sums, load_c4(params, batch, row, column), row, column);
}

// The same for threads that have one or two of them, without a call where D is the sums: its code
// would have to be fetched when all else is done.
__device__ inline void finish_row4_inline(const Params& params, int64_t batch, float4 sums,
                                          int64_t row, int64_t column) {
  if (params.scaled_sums) {
    store_d4(params, batch, scale4(params.alpha, sums), row, column);
  } else {
    finish_row4(params, batch, sums, row, column);
  }
}

__device__ inline float4* partial_row4(const Params& params, int64_t plane, int64_t row,
                                       int64_t column) {
  return reinterpret_cast<float4*>(params.partials +
                                   (plane * params.m + row) * params.partial_stride + column);
}

}  // namespace xgemm::cuda::gemm::fp32
