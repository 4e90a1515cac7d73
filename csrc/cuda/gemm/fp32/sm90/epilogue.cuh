// From the threads' sums to D, or to the sums of parts of K.
#pragma once

#include "cuda/gemm/fp32/sm90/tile.cuh"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/ld_st.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

// A tile, or a part of K of one.
struct Unit {
  Work work;
  int part;  // of all parts; negative: the whole tile

  // Whole tiles come first. The others' parts are shorter: they fill what the SMs, of which some
  // are slower than others, would idle in the end.
  template <typename Tile>
  __device__ static Unit at(const Params& params, int index) {
    const int splits = params.splits;
    Unit unit;
    unit.part = index - params.whole;
    const int tile = unit.part < 0 ? index : params.whole + unit.part / splits;
    unit.place<Tile>(params, tile);
    unit.work.k = unit.part < 0 ? 0 : unit.part % splits * params.k_per_split;
    unit.work.k_end = unit.part < 0 ? params.k : min(unit.work.k + params.k_per_split, params.k);
    return unit;
  }

 private:
  template <typename Tile>
  __device__ void place(const Params& params, int tile) {
    const int per_plane = static_cast<int>(params.tiles_m * params.tiles_n);
    work.place<Tile>(params, tile % per_plane);
    work.batch = tile / per_plane;
  }
};

template <typename Tile>
__device__ inline void store4(const Params& params, const Unit& unit, float4 x, int row,
                              int column) {
  if (unit.part < 0) {
    store_result4(params, unit.work.batch, x, unit.work.m + row, unit.work.n + column);
  } else {
    float* tile = params.partials + int64_t{unit.part} * (Tile::kBlockM * Tile::kBlockN);
    *reinterpret_cast<float4*>(tile + row * Tile::kBlockN + column) = x;
  }
}

// Calls visit(sums, row, column) for each quad of a thread. `one` keeps the sums out of aligned
// quads of registers, as scale4 says.
template <typename Tile, typename Visit>
__device__ inline void for_each_quad(const ThreadTile<Tile>& mine, float one, Visit visit) {
#pragma unroll
  for (int i = 0; i < Tile::kThreadM; ++i) {
    const int row = mine.row + i / 4 * 4 * Tile::kLanesM + i % 4;
#pragma unroll
    for (int j = 0; j < Tile::kThreadN; j += 4) {
      const float4 x = {mine.acc[i][j], mine.acc[i][j + 1], mine.acc[i][j + 2], mine.acc[i][j + 3]};
      visit(scale4(one, x), row, mine.column + j * Tile::kLanesN);
    }
  }
}

// Where a quad of a tile's sums lies in shared memory: eight lanes, with four rows and two columns
// of quads, write to different banks.
template <typename Tile>
__device__ inline int place_of_sums(int row, int column) {
  return row * Tile::kBlockN + (column ^ row / 4 % 4 * 8);
}

// The sums of warps that share K are added in order: the same bits in every run.
template <typename Tile>
__device__ inline void store_sums(const TmaParams& params, SharedStorage<Tile>& smem,
                                  const Unit& unit, const ThreadTile<Tile>& mine, int warp_k) {
  for_each_quad(mine, params.one, [&](float4 x, int row, int column) {
    *reinterpret_cast<float4*>(&smem.sums[warp_k][place_of_sums<Tile>(row, column)]) = x;
  });
  __syncthreads();
  constexpr int kQuads = Tile::kBlockN / 4;
#pragma unroll 2
  for (int i = threadIdx.x; i < Tile::kBlockM * kQuads; i += Tile::kThreads) {
    const int row = i / kQuads, column = i % kQuads * 4;
    const int place = place_of_sums<Tile>(row, column);
    float4 sum = *reinterpret_cast<const float4*>(&smem.sums[0][place]);
#pragma unroll
    for (int warp = 1; warp < Tile::kWarpsK; ++warp) {
      const float4 x = *reinterpret_cast<const float4*>(&smem.sums[warp][place]);
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    store4<Tile>(params.problem, unit, sum, row, column);
  }
}

// D's tiles that were split, from their parts, in order: the same bits in every run.
constexpr int kReduceThreads = 256;
template <typename Tile>
constexpr int kReduceRows = kReduceThreads * 4 / Tile::kBlockN;

template <typename Tile>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ Params params) {
  constexpr int kRows = kReduceRows<Tile>, kBlocks = Tile::kBlockM / kRows;  // of a tile
  constexpr int kPart = Tile::kBlockM * Tile::kBlockN;
  const int tile = static_cast<int>(blockIdx.x) / kBlocks;
  const Unit unit = Unit::at<Tile>(params, params.whole + tile * params.splits);
  const int row =
      static_cast<int>(blockIdx.x) % kBlocks * kRows + threadIdx.x / (Tile::kBlockN / 4);
  const int column = threadIdx.x % (Tile::kBlockN / 4) * 4;
  const int64_t d_row = unit.work.m + row, d_column = unit.work.n + column;
  ptx::griddep_wait();
  if (d_row >= params.m || d_column >= params.n) return;
  const float* from = params.partials + int64_t{unit.part} * kPart + row * Tile::kBlockN + column;
  float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
  for (int split = 0; split < params.splits; ++split) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    from += kPart;
  }
  finish_row4(params, unit.work.batch, sum, d_row, d_column);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
