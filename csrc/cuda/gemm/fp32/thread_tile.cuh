// A thread's part of a tile: fragments from shared memory, double-buffered, and their outer
// products.
#pragma once

#include "cuda/gemm/fp32/epilogue.cuh"
#include "cuda/gemm/fp32/tile.cuh"
#include "cuda/gemm/fp32/work.cuh"
#include "cuda/ptx/ld_st.h"

namespace xgemm::cuda::gemm::fp32 {

template <typename Tile>
class ThreadTile {
 public:
  static constexpr int kM = Tile::kThreadM, kN = Tile::kThreadN;
  static constexpr int kLanesM = Tile::kLanesM, kLanesN = Tile::kLanesN;
  float acc[kM][kN];
  int row, column;  // its first ones in the tile; further quads follow kLanes * 4 apart

  __device__ ThreadTile(int warp, int lane) {
    // Lanes are laid out so that a half-warp's reads of either operand are at most 128 bytes.
    const int m = kLanesM == 4 ? lane / 16 * 2 + lane % 2 : lane / 16 * 4 + lane % 4;
    const int n = kLanesM == 4 ? lane / 2 % kLanesN : lane / 4 % kLanesN;
    row = warp / Tile::kWarpsN * Tile::kWarpM + m * 4;
    column = warp % Tile::kWarpsN * Tile::kWarpN + n * 4;
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) acc[i][j] = 0.0f;
    }
  }

  // a, b: shared-memory addresses of the operands' tiles, at the thread's row and column.
  __device__ void load(int set, uint32_t a, uint32_t b, int k) {
    const uint32_t from_a = a + k * Tile::kStrideA * 4, from_b = b + k * Tile::kStrideB * 4;
#pragma unroll
    for (int i = 0; i < kM; i += 4) {
      const float4 x = ptx::ld_shared(from_a + i * kLanesM * 4);
      a_[set][i] = x.x, a_[set][i + 1] = x.y, a_[set][i + 2] = x.z, a_[set][i + 3] = x.w;
    }
#pragma unroll
    for (int j = 0; j < kN; j += 4) {
      const float4 x = ptx::ld_shared(from_b + j * kLanesN * 4);
      b_[set][j] = x.x, b_[set][j + 1] = x.y, b_[set][j + 2] = x.z, b_[set][j + 3] = x.w;
    }
  }

  // To and fro along rows, so that neighbouring FMAs share an operand: one that reads three
  // registers takes a cycle more than one that finds one of them in the reuse cache.
  __device__ void multiply(int set) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int step = 0; step < kN; ++step) {
        const int j = i % 2 == 0 ? step : kN - 1 - step;
        acc[i][j] = fmaf(a_[set][i], b_[set][j], acc[i][j]);
      }
    }
  }

 private:
  float a_[2][kM], b_[2][kN];
};

__device__ inline void store_result4(const Params& params, int64_t batch, float4 sums, int64_t row,
                                     int64_t column) {
  if (row >= params.m || column >= params.n) return;
  const float4 scaled = scale4(params.store_scale, sums);
  if (!params.plain) {
    finish_row4(params, batch, scaled, row, column);
    return;
  }
  float* d =
      params.d + batch_offset(params, batch, &BatchDim::d) + row * params.d_row_stride + column;
  const int columns = static_cast<int>(min(params.n - column, int64_t{4}));
  if (params.d_vector && columns == 4) {
    *reinterpret_cast<float4*>(d) = scaled;
  } else {
    d[0] = scaled.x;
    if (columns > 1) d[1] = scaled.y;
    if (columns > 2) d[2] = scaled.z;
    if (columns > 3) d[3] = scaled.w;
  }
}

__device__ inline void store_row4(const Params& params, const Work& work, float4 sums, int64_t row,
                                  int64_t column) {
  if (params.splits == 1) {
    store_result4(params, work.batch, sums, row, column);
  } else if (row < params.m && column < params.n) {
    *partial_row4(params, work.plane, row, column) = scale4(params.store_scale, sums);
  }
}

template <typename Tile>
__device__ inline void store_tile(const Params& params, const Work& work,
                                  const ThreadTile<Tile>& mine) {
#pragma unroll
  for (int i = 0; i < Tile::kThreadM; ++i) {
    const int64_t row = work.m + mine.row + i / 4 * 4 * Tile::kLanesM + i % 4;
#pragma unroll
    for (int j = 0; j < Tile::kThreadN; j += 4) {
      const float4 x = {mine.acc[i][j], mine.acc[i][j + 1], mine.acc[i][j + 2], mine.acc[i][j + 3]};
      store_row4(params, work, x, row, work.n + mine.column + j * Tile::kLanesN);
    }
  }
}

}  // namespace xgemm::cuda::gemm::fp32
