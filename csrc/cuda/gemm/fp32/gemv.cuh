// Products with few rows of D, four at most: a stream over B, from global memory straight into
// registers. A thread block has some columns of D; its warps share out k.
#pragma once

#include "cuda/gemm/fp32/epilogue.cuh"
#include "cuda/gemm/fp32/tile.cuh"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::fp32 {

// What a thread sums: kFew rows of D by four columns.
template <int kFew>
struct GemvSums {
  float at[kFew][4] = {};
};

struct GemvWork {
  int64_t column, batch, k, k_end, plane;

  __device__ static GemvWork at(const Params& params, int64_t index) {
    const int64_t plane = index / params.tiles_n, batch = plane / params.splits;
    const int64_t split = plane % params.splits, k = split * params.k_per_split;
    return {index % params.tiles_n, batch, k, min(k + params.k_per_split, params.k),
            split * params.batches + batch};
  }
};

// B along k: a lane has 4 neighbouring k of 4 columns, a warp 128 k.
template <int kFew>
class KMajorGemv {
 public:
  static constexpr int kColumns = 4;
  __device__ static void sum(const Params& params, const GemvWork& work, GemvSums<kFew>* sums) {
    const auto along_k = [](const OperandParams& operand) {
      return operand.vectors && operand.access == Access::kAlongK;
    };
    if (along_k(params.a) && along_k(params.b) && (work.k_end - work.k) % 4 == 0) {
      multiply<true>(params, work, sums);
    } else {
      multiply<false>(params, work, sums);
    }
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) {
          sums->at[i][j] += __shfl_xor_sync(~0u, sums->at[i][j], mask);
        }
      }
    }
  }

 private:
  template <bool kVectors>
  __device__ static void multiply(const Params& params, const GemvWork& work,
                                  GemvSums<kFew>* sums) {
    const OperandParams &w = params.b, &x = params.a;
    const float* w_at[4];
    const float* x_at[kFew];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t column = min(work.column * kColumns + j, params.n - 1);
      w_at[j] = w.data + batch_offset(params, work.batch, &BatchDim::b) + column * w.row_stride;
    }
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
      x_at[i] = x.data + batch_offset(params, work.batch, &BatchDim::a) +
                min(int64_t{i}, params.m - 1) * x.row_stride;
    }
#pragma unroll(kVectors ? 2 : 1)
    for (int64_t k = work.k + threadIdx.x * 4; k < work.k_end; k += kGemvThreads * 4) {
      float b[4][4], a[kFew][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) load<kVectors>(w_at[j], w.k_stride, k, work.k_end, b[j]);
#pragma unroll
      for (int i = 0; i < kFew; ++i) load<kVectors>(x_at[i], x.k_stride, k, work.k_end, a[i]);
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums->at[i][j] = fmaf(a[i][e], b[j][e], sums->at[i][j]);
        }
      }
    }
  }

  // Four elements along k, and zeros past the end.
  template <bool kVectors>
  __device__ static void load(const float* row, int64_t stride, int64_t k, int64_t k_end,
                              float (&to)[4]) {
    if constexpr (kVectors) {
      const float4 v = __ldg(reinterpret_cast<const float4*>(row + k));
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = k + e < k_end ? __ldg(row + (k + e) * stride) : 0.0f;
    }
  }
};

// B along its columns: a lane has 4 neighbouring columns, a warp 128, of one k.
template <int kFew>
class WideGemv {
 public:
  static constexpr int kColumns = 128;
  __device__ static void sum(const Params& params, const GemvWork& work, GemvSums<kFew>* sums) {
    const int64_t column = work.column * kColumns + threadIdx.x % 32 * 4;
    const int columns = static_cast<int>(min(max(params.n - column, int64_t{0}), int64_t{4}));
    if (params.b.vectors && params.b.access == Access::kRows16 && columns == 4) {
      multiply<true>(params, work, column, columns, sums);
    } else {
      multiply<false>(params, work, column, columns, sums);
    }
  }

 private:
  template <bool kVectors>
  __device__ static void multiply(const Params& params, const GemvWork& work, int64_t column,
                                  int columns, GemvSums<kFew>* sums) {
    const OperandParams &w = params.b, &x = params.a;
    const int64_t first = work.k + threadIdx.x / 32;
    const float* w_at = w.data + batch_offset(params, work.batch, &BatchDim::b) +
                        first * w.k_stride + column * w.row_stride;
    const float* x_at =
        x.data + batch_offset(params, work.batch, &BatchDim::a) + first * x.k_stride;
#pragma unroll(kVectors ? 8 : 2)
    for (int64_t k = first; k < work.k_end; k += kGemvWarps) {
      float b[4];
      if constexpr (kVectors) {
        const float4 v = __ldg(reinterpret_cast<const float4*>(w_at));
        b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) b[j] = j < columns ? __ldg(w_at + j * w.row_stride) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        const float a = __ldg(x_at + min(int64_t{i}, params.m - 1) * x.row_stride);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums->at[i][j] = fmaf(a, b[j], sums->at[i][j]);
      }
      w_at += kGemvWarps * w.k_stride, x_at += kGemvWarps * x.k_stride;
    }
  }
};

template <typename Gemv, int kFew>
__global__ void __launch_bounds__(kGemvThreads, 4)
    gemv_kernel(const __grid_constant__ Params params) {
  constexpr int kQuads = Gemv::kColumns / 4;  // of columns, of a row
  struct Storage {
    float4 sums[kGemvWarps][kFew][kQuads];
  };
  XGEMM_STATIC_SHARED(Storage, smem);
  const GemvWork work = GemvWork::at(params, params.first_work + blockIdx.x);
  GemvSums<kFew> sums;
  Gemv::sum(params, work, &sums);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane < kQuads) {
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
      const float (&x)[4] = sums.at[i];
      smem.sums[warp][i][lane] = {x[0], x[1], x[2], x[3]};
    }
  }
  __syncthreads();
  const int row = threadIdx.x / kQuads, quad = threadIdx.x % kQuads;
  const int64_t column = work.column * Gemv::kColumns + quad * 4;
  if (row >= kFew || row >= params.m || column >= params.n) return;
  float4 total = smem.sums[0][row][quad];
#pragma unroll
  for (int i = 1; i < kGemvWarps; ++i) {
    const float4 part = smem.sums[i][row][quad];
    total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
  }
  if (params.splits > 1) {
    *partial_row4(params, work.plane, row, column) = total;
  } else {
    finish_row4(params, work.batch, total, row, column);
  }
}

}  // namespace xgemm::cuda::gemm::fp32
