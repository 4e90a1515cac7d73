// Products with few rows of D, four at most: a stream over B, from global memory straight into
// registers. A thread block has some columns of D; its warps share out k, or these columns.
#pragma once

#include "cuda/gemm/fp32/epilogue.cuh"
#include "cuda/gemm/fp32/tile.cuh"
#include "cuda/ptx/ld_st.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::fp32 {

// What a thread sums: kRowsOfD rows of D by four columns.
template <int kRowsOfD>
struct GemvSums {
  float at[kRowsOfD][4] = {};

  __device__ void add(int row, float a, float4 b) {
    at[row][0] = fmaf(a, b.x, at[row][0]), at[row][1] = fmaf(a, b.y, at[row][1]);
    at[row][2] = fmaf(a, b.z, at[row][2]), at[row][3] = fmaf(a, b.w, at[row][3]);
  }

  // Over the lanes whose numbers differ by multiples of `from`.
  template <int from>
  __device__ void add_lanes() {
#pragma unroll
    for (auto& row : at) {
#pragma unroll
      for (float& x : row) {
#pragma unroll
        for (int mask = from; mask < 32; mask *= 2) x += __shfl_xor_sync(~0u, x, mask);
      }
    }
  }
};

// A CTA's work: its first column, its part of K, and the operands at that part.
struct GemvWork {
  int64_t column, batch, plane;
  int depth;  // of its part of K
  const float *a, *b;

  // kCluster: the parts of K of a tile follow each other.
  template <bool kCluster>
  __device__ static GemvWork at(const Params& params, int64_t index) {
    // 64-bit divisions take long, and few products have so many CTAs.
    constexpr int64_t kMax = INT32_MAX;
    int64_t tile, batch, split;
    if (index < kMax) {
      const auto tiles = static_cast<uint32_t>(min(params.tiles_n, kMax));
      const auto splits = static_cast<uint32_t>(params.splits);
      auto i = static_cast<uint32_t>(index);
      if constexpr (kCluster) split = i % splits, i /= splits;
      uint32_t plane = i / tiles;
      tile = i - plane * tiles;
      if constexpr (!kCluster) split = plane % splits, plane /= splits;
      batch = plane;
    } else {
      int64_t i = index;
      if constexpr (kCluster) split = i % params.splits, i /= params.splits;
      int64_t plane = i / params.tiles_n;
      tile = i - plane * params.tiles_n;
      if constexpr (!kCluster) split = plane % params.splits, plane /= params.splits;
      batch = plane;
    }
    const int64_t k = split * params.k_per_split;
    return {tile * params.gemv_columns,
            batch,
            split * params.batches + batch,
            static_cast<int>(min(params.k_per_split, params.k - k)),
            params.a.data + batch_offset(params, batch, &BatchDim::a) + k * params.a.k_stride,
            params.b.data + batch_offset(params, batch, &BatchDim::b) + k * params.b.k_stride};
  }
};

// B along k: a warp has 4 columns and, at a time, 128 k.
template <int kRowsOfD>
class KMajorGemv {
 public:
  static constexpr int kColumns = 4;  // of a warp

  int parts, part;  // shares of k in the CTA, and which of them the warp has

  __device__ KMajorGemv(const Params& params, int warp, int warps)
      : parts(warps * kColumns / params.gemv_columns),
        part(warp % parts),
        column_(warp / parts * kColumns) {}

  __device__ void sum(const Params& params, const GemvWork& work, int lane,
                      GemvSums<kRowsOfD>* sums) const {
    const auto along_k = [](const OperandParams& operand) {
      return operand.vectors && operand.access == Access::kAlongK;
    };
    if (along_k(params.a) && along_k(params.b) && work.depth % 4 == 0) {
      multiply<true>(params, work, lane, sums);
    } else {
      multiply<false>(params, work, lane, sums);
    }
    sums->template add_lanes<1>();
  }

  // To [kRowsOfD][gemv_columns].
  __device__ void store(const Params& params, const GemvSums<kRowsOfD>& sums, int lane,
                        float* to) const {
    if (lane > 0) return;
#pragma unroll
    for (int i = 0; i < kRowsOfD; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i * params.gemv_columns + column_ + j] = sums.at[i][j];
    }
  }

 private:
  static constexpr int kStep = 128;

  // Rows of k: w of B, x of A; those beyond the last one read it again.
  struct Rows {
    const float *w[4], *x[kRowsOfD];
    int64_t w_stride, x_stride;
  };

  template <bool kVectors>
  __device__ void multiply(const Params& params, const GemvWork& work, int lane,
                           GemvSums<kRowsOfD>* sums) const {
    // A lane's four k are neighbours, or neighbouring lanes' ones.
    int k = part * kStep + lane * (kVectors ? 4 : 1);
    Rows rows;
    rows.w_stride = params.b.k_stride, rows.x_stride = params.a.k_stride;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t column = min(work.column + column_ + j, params.n - 1);
      rows.w[j] = work.b + column * params.b.row_stride;
    }
#pragma unroll
    for (int i = 0; i < kRowsOfD; ++i) {
      rows.x[i] = work.a + min(int64_t{i}, params.m - 1) * params.a.row_stride;
    }
    const int whole = max(work.depth / kStep - part + parts - 1, 0) / parts;
#pragma unroll(kVectors ? 2 : 1)
    for (int i = 0; i < whole; ++i) {
      step<kVectors, true>(rows, k, work.depth, sums);
      k += parts * kStep;
    }
    if (k < work.depth) step<kVectors, false>(rows, k, work.depth, sums);
  }

  // kWhole: all lanes' k exist.
  template <bool kVectors, bool kWhole>
  __device__ static void step(const Rows& rows, int k, int depth, GemvSums<kRowsOfD>* sums) {
    float4 w[4], x[kRowsOfD];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      w[j] = load<kVectors, kWhole>(rows.w[j], rows.w_stride, k, depth);
    }
#pragma unroll
    for (int i = 0; i < kRowsOfD; ++i) {
      x[i] = load<kVectors, kWhole>(rows.x[i], rows.x_stride, k, depth);
    }
#pragma unroll
    for (int i = 0; i < kRowsOfD; ++i) {
      sums->add(i, x[i].x, {w[0].x, w[1].x, w[2].x, w[3].x});
      sums->add(i, x[i].y, {w[0].y, w[1].y, w[2].y, w[3].y});
      sums->add(i, x[i].z, {w[0].z, w[1].z, w[2].z, w[3].z});
      sums->add(i, x[i].w, {w[0].w, w[1].w, w[2].w, w[3].w});
    }
  }

  template <bool kVectors, bool kWhole>
  __device__ static float4 load(const float* row, int64_t stride, int k, int depth) {
    if constexpr (kVectors) return __ldg(reinterpret_cast<const float4*>(row + k));
    const auto at = [&](int i) {
      return kWhole || k + i < depth ? __ldg(row + (k + i) * stride) : 0.0f;
    };
    return {at(0), at(32), at(64), at(96)};
  }

  int column_;  // the warp's first one of the CTA's
};

// B along its columns: a warp has 4 kLanes columns of 32 / kLanes k at a time.
template <int kRowsOfD, int kLanes>
class WideGemv {
 public:
  int parts, part;  // shares of k in the CTA, and which of them the warp has

  __device__ WideGemv(const Params&, int warp, int warps) : parts(warps), part(warp) {}

  __device__ void sum(const Params& params, const GemvWork& work, int lane,
                      GemvSums<kRowsOfD>* sums) const {
    if (in_quads(params)) {
      multiply<true>(params, work, lane, sums);
    } else {
      multiply<false>(params, work, lane, sums);
    }
    sums->template add_lanes<kLanes>();
  }

  __device__ void store(const Params& params, const GemvSums<kRowsOfD>& sums, int lane,
                        float* to) const {
    if (lane >= kLanes) return;
    const bool quads = in_quads(params);
#pragma unroll
    for (int i = 0; i < kRowsOfD; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        to[i * params.gemv_columns + (quads ? lane * 4 + j : lane + j * kLanes)] = sums.at[i][j];
      }
    }
  }

 private:
  static constexpr int kRows = 32 / kLanes;  // of k, at a time

  // Whether a lane's four columns are neighbours; else they are neighbouring lanes' ones.
  __device__ static bool in_quads(const Params& params) {
    return params.b.vectors && params.b.access == Access::kRows16 && params.n % 4 == 0;
  }

  // Rows of B, and the elements of A that they are multiplied by.
  template <bool kVectors>
  struct Rows {
    const float *w[kVectors ? 1 : 4], *x[kRowsOfD];
    int64_t w_step, x_step;
  };

  template <bool kVectors>
  __device__ void multiply(const Params& params, const GemvWork& work, int lane,
                           GemvSums<kRowsOfD>* sums) const {
    const int first = part * kRows + lane / kLanes, step = parts * kRows;
    Rows<kVectors> rows;
#pragma unroll
    for (int j = 0; j < (kVectors ? 1 : 4); ++j) {
      // Those beyond the last one read it again.
      const int64_t column = work.column + lane % kLanes * (kVectors ? 4 : 1) + j * kLanes;
      rows.w[j] = work.b + first * params.b.k_stride +
                  min(column, params.n - (kVectors ? 4 : 1)) * params.b.row_stride;
    }
#pragma unroll
    for (int i = 0; i < kRowsOfD; ++i) {
      rows.x[i] =
          work.a + first * params.a.k_stride + min(int64_t{i}, params.m - 1) * params.a.row_stride;
    }
    rows.w_step = step * params.b.k_stride, rows.x_step = step * params.a.k_stride;
    constexpr int kBatch = kVectors ? 8 : 4;
    int count = max(work.depth - first + step - 1, 0) / step;
#pragma unroll 1
    for (; count >= kBatch; count -= kBatch) add<kBatch, true>(&rows, kBatch, sums);
    if (count > 0) add<kBatch, false>(&rows, count, sums);
  }

  // A batch of rows is loaded at once, the last one, too: one by one each of its rows would be
  // waited for.
  template <int kBatch, bool kWhole, bool kVectors>
  __device__ static void add(Rows<kVectors>* rows, int count, GemvSums<kRowsOfD>* sums) {
    float4 b[kBatch];
    float a[kBatch][kRowsOfD];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool inside = kWhole || i < count;
      const auto at = [&](const float* from) { return inside ? __ldg(from) : 0.0f; };
      if constexpr (kVectors) {
        b[i] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (inside) b[i] = __ldg(reinterpret_cast<const float4*>(rows->w[0]));
      } else {
        b[i] = {at(rows->w[0]), at(rows->w[1]), at(rows->w[2]), at(rows->w[3])};
      }
#pragma unroll
      for (auto& row : rows->w) row += rows->w_step;
#pragma unroll
      for (int row = 0; row < kRowsOfD; ++row) {
        a[i][row] = at(rows->x[row]);
        rows->x[row] += rows->x_step;
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int row = 0; row < kRowsOfD; ++row) sums->add(row, a[i][row], b[i]);
    }
  }
};

// kCluster: the parts of K are the CTAs of a cluster.
template <typename Gemv, int kRowsOfD, bool kCluster>
__global__ void __launch_bounds__(kMaxGemvThreads, 1)
    gemv_kernel(const __grid_constant__ Params params) {
  struct Storage {
    alignas(
        16) float sums[kMaxGemvWarps * kRowsOfD * kMaxGemvColumns];  // [part][row][gemv_columns]
  };
  XGEMM_STATIC_SHARED(Storage, smem);
  const GemvWork work = GemvWork::at<kCluster>(params, params.first_work + blockIdx.x);
  const int lane = threadIdx.x % 32, of_part = kRowsOfD * params.gemv_columns;
  const Gemv gemv(params, threadIdx.x / 32, blockDim.x / 32);
  GemvSums<kRowsOfD> sums;
  gemv.sum(params, work, lane, &sums);
  gemv.store(params, sums, lane, smem.sums + gemv.part * of_part);
  __syncthreads();
  const int quads = params.gemv_columns / 4;  // of a row
#pragma unroll 1
  for (int i = threadIdx.x; i < kRowsOfD * quads; i += blockDim.x) {
    const int row = i / quads;
    const int64_t column = work.column + i % quads * 4;
    if (row >= params.m || column >= params.n) continue;
    float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int part = 0; part < gemv.parts; ++part) {
      const float4 x = *reinterpret_cast<const float4*>(smem.sums + part * of_part + i * 4);
      total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
    }
    if constexpr (kCluster) {
      *reinterpret_cast<float4*>(smem.sums + i * 4) = total;
    } else if (params.splits > 1) {
      *partial_row4(params, work.plane, row, column) = total;
    } else {
      finish_row4_inline(params, work.batch, total, row, column);
    }
  }
  if constexpr (kCluster) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (ptx::cluster_cta_rank() == 0) {
#pragma unroll 1
      for (int i = threadIdx.x; i < kRowsOfD * quads; i += blockDim.x) {
        const int row = i / quads;
        const int64_t column = work.column + i % quads * 4;
        if (row >= params.m || column >= params.n) continue;
        const auto* x = reinterpret_cast<const float*>(smem.sums) + i * 4;
        float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (int split = 0; split < params.splits; ++split) {
          total.x += ptx::ld_shared_cluster(x, split);
          total.y += ptx::ld_shared_cluster(x + 1, split);
          total.z += ptx::ld_shared_cluster(x + 2, split);
          total.w += ptx::ld_shared_cluster(x + 3, split);
        }
        finish_row4_inline(params, work.batch, total, row, column);
      }
    }
    ptx::cluster_arrive_relaxed();  // nobody leaves while its sums are read
    ptx::cluster_wait();
  }
}

// The kernel for a B that lies so, and so many columns of a CTA.
template <int kRowsOfD, bool kCluster>
inline auto find_gemv(const Params& params, int columns) {
  return params.b.access == Access::kAlongK ? gemv_kernel<KMajorGemv<kRowsOfD>, kRowsOfD, kCluster>
         : columns == kMaxGemvColumns ? gemv_kernel<WideGemv<kRowsOfD, 32>, kRowsOfD, kCluster>
                                      : gemv_kernel<WideGemv<kRowsOfD, 8>, kRowsOfD, kCluster>;
}

}  // namespace xgemm::cuda::gemm::fp32
