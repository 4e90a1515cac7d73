// Products with few rows of D, four at most: a stream over B, from global memory straight into
// registers. A thread block has some columns of D; its warps share out these columns, or k.
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
  int64_t column, batch, k, k_end, plane;  // the first column

  __device__ static GemvWork at(const Params& params, int64_t index) {
    const int64_t plane = index / params.tiles_n, batch = plane / params.splits;
    const int64_t split = plane % params.splits, k = split * params.k_per_split;
    return {(index - plane * params.tiles_n) * params.few_columns,
            batch,
            k,
            min(k + params.k_per_split, params.k),
            split * params.batches + batch};
  }
};

// B along k: a warp has 4 columns and, at a time, 128 k.
template <int kFew>
class KMajorGemv {
 public:
  static constexpr int kColumns = 4;  // of a warp

  // part: which of the CTA's shares of k the warp has; column: its first one of the CTA's.
  int part, column;

  __device__ KMajorGemv(const Params& params, int warp)
      : part(warp % parts(params)), column(warp / parts(params) * kColumns) {}

  __device__ static int parts(const Params& params) {
    return kGemvWarps * kColumns / params.few_columns;
  }

  __device__ void sum(const Params& params, const GemvWork& work, int lane,
                      GemvSums<kFew>* sums) const {
    const auto along_k = [](const OperandParams& operand) {
      return operand.vectors && operand.access == Access::kAlongK;
    };
    if (along_k(params.a) && along_k(params.b) && (work.k_end - work.k) % 4 == 0) {
      multiply<true>(params, work, lane, sums);
    } else {
      multiply<false>(params, work, lane, sums);
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

  // To [kFew][few_columns].
  __device__ void store(const Params& params, const GemvSums<kFew>& sums, int lane,
                        float* to) const {
    if (lane > 0) return;
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i * params.few_columns + column + j] = sums.at[i][j];
    }
  }

 private:
  static constexpr int kStep = 128;

  template <bool kVectors>
  __device__ void multiply(const Params& params, const GemvWork& work, int lane,
                           GemvSums<kFew>* sums) const {
    const OperandParams &w = params.b, &x = params.a;
    const float* w_at[4];
    const float* x_at[kFew];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Those beyond the last one read it again.
      const int64_t of_d = min(work.column + column + j, params.n - 1);
      w_at[j] = w.data + batch_offset(params, work.batch, &BatchDim::b) + of_d * w.row_stride;
    }
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
      x_at[i] = x.data + batch_offset(params, work.batch, &BatchDim::a) +
                min(int64_t{i}, params.m - 1) * x.row_stride;
    }
    const int64_t step = int64_t{parts(params)} * kStep;
#pragma unroll 2
    for (int64_t k = work.k + part * kStep + lane * (kVectors ? 4 : 1); k < work.k_end; k += step) {
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

  // Four elements along k, and zeros past the end: neighbours, or neighbouring lanes' ones.
  template <bool kVectors>
  __device__ static void load(const float* row, int64_t stride, int64_t k, int64_t k_end,
                              float (&to)[4]) {
    if constexpr (kVectors) {
      const float4 v = __ldg(reinterpret_cast<const float4*>(row + k));
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        to[e] = k + e * 32 < k_end ? __ldg(row + (k + e * 32) * stride) : 0.0f;
      }
    }
  }
};

// B along its columns: a warp has 128 columns of one k at a time, or 32 of four, where more thread
// blocks are wanted.
template <int kFew>
class WideGemv {
 public:
  int part;  // which of the CTA's shares of k the warp has: all have the same columns

  __device__ WideGemv(const Params&, int warp) : part(warp) {}

  __device__ static int parts(const Params&) { return kGemvWarps; }

  __device__ void sum(const Params& params, const GemvWork& work, int lane,
                      GemvSums<kFew>* sums) const {
    const int lanes = params.few_columns / 4;
    if (by_quads(params)) {
      multiply<true>(params, work, lane, sums);
    } else {
      multiply<false>(params, work, lane, sums);
    }
    for (int mask = lanes; mask < 32; mask *= 2) {
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums->at[i][j] += __shfl_xor_sync(~0u, sums->at[i][j], mask);
      }
    }
  }

  __device__ void store(const Params& params, const GemvSums<kFew>& sums, int lane,
                        float* to) const {
    const int lanes = params.few_columns / 4;
    if (lane >= lanes) return;
    const bool quads = by_quads(params);
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        to[i * params.few_columns + (quads ? lane * 4 + j : lane + j * lanes)] = sums.at[i][j];
      }
    }
  }

 private:
  // Whether a lane's four columns are neighbours; else they are neighbouring lanes' ones.
  __device__ static bool by_quads(const Params& params) {
    return params.b.vectors && params.b.access == Access::kRows16 && params.n % 4 == 0;
  }

  template <bool kVectors>
  __device__ void multiply(const Params& params, const GemvWork& work, int lane,
                           GemvSums<kFew>* sums) const {
    const OperandParams &w = params.b, &x = params.a;
    const int lanes = params.few_columns / 4, rows = 32 / lanes;  // of k, at a time
    const int64_t column = work.column + lane % lanes * (kVectors ? 4 : 1);
    const int64_t first = work.k + part * rows + lane / lanes;
    const int step = kGemvWarps * rows;
    const float* w_at[kVectors ? 1 : 4];
#pragma unroll
    for (int j = 0; j < (kVectors ? 1 : 4); ++j) {
      // Those beyond the last one read it again.
      const int64_t of_d = min(column + j * lanes, params.n - (kVectors ? 4 : 1));
      w_at[j] = w.data + batch_offset(params, work.batch, &BatchDim::b) + first * w.k_stride +
                of_d * w.row_stride;
    }
    const float* x_at =
        x.data + batch_offset(params, work.batch, &BatchDim::a) + first * x.k_stride;
#pragma unroll(kVectors ? 8 : 4)
    for (int64_t k = first; k < work.k_end; k += step) {
      float b[4];
      if constexpr (kVectors) {
        const float4 v = __ldg(reinterpret_cast<const float4*>(w_at[0]));
        b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
        w_at[0] += step * w.k_stride;
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) b[j] = __ldg(w_at[j]), w_at[j] += step * w.k_stride;
      }
#pragma unroll
      for (int i = 0; i < kFew; ++i) {
        const float a = __ldg(x_at + min(int64_t{i}, params.m - 1) * x.row_stride);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums->at[i][j] = fmaf(a, b[j], sums->at[i][j]);
      }
      x_at += step * x.k_stride;
    }
  }
};

template <typename Gemv, int kFew>
__global__ void __launch_bounds__(kGemvThreads, kFew == 1 ? 3 : 2)
    gemv_kernel(const __grid_constant__ Params params) {
  struct Storage {
    alignas(16) float sums[kGemvWarps * kFew * kMostFewColumns];  // [part][row][few_columns]
  };
  XGEMM_STATIC_SHARED(Storage, smem);
  const GemvWork work = GemvWork::at(params, params.first_work + blockIdx.x);
  const int lane = threadIdx.x % 32, of_part = kFew * params.few_columns;
  const Gemv gemv(params, threadIdx.x / 32);
  GemvSums<kFew> sums;
  gemv.sum(params, work, lane, &sums);
  gemv.store(params, sums, lane, smem.sums + gemv.part * of_part);
  __syncthreads();
  const int quads = params.few_columns / 4;  // of a row
  const int row = threadIdx.x / quads, quad = threadIdx.x % quads;
  const int64_t column = work.column + quad * 4;
  if (row >= kFew || row >= params.m || column >= params.n) return;
  const float* from = smem.sums + row * params.few_columns + quad * 4;
  float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int i = 0; i < Gemv::parts(params); ++i) {
    const float4 part = *reinterpret_cast<const float4*>(from + i * of_part);
    total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
  }
  if (params.splits > 1) {
    *partial_row4(params, work.plane, row, column) = total;
  } else {
    finish_row4(params, work.batch, total, row, column);
  }
}

}  // namespace xgemm::cuda::gemm::fp32
