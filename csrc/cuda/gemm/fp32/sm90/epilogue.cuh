// From the warps' sums to D, or to the sums of parts of K.
#pragma once

#include "cuda/gemm/fp32/sm90/fragment.cuh"
#include "cuda/gemm/fp32/sm90/unit.cuh"
#include "cuda/ptx/griddep.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

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

__device__ inline float4 from_neighbour(float4 x) {
  constexpr unsigned kAll = 0xffffffffu;
  return {__shfl_xor_sync(kAll, x.x, 1), __shfl_xor_sync(kAll, x.y, 1),
          __shfl_xor_sync(kAll, x.z, 1), __shfl_xor_sync(kAll, x.w, 1)};
}

// Blocks of eight columns lie so that a lane has quads of neighbouring ones.
template <typename Tile, bool kAAlongK, bool kBAlongK>
__device__ inline void store_sums(const Params& params, const Unit& unit,
                                  const WarpTile<Tile, kAAlongK, kBAlongK>& mine) {
  const int lane = mine.lane, t = lane % 4;
#pragma unroll
  for (int block = 0; block < Tile::kWarpM / 8; ++block) {
    const int row = mine.row + place<kAAlongK>(block, lane / 4);
    const auto sum = [&](int column_block, int i) {
      return static_cast<float>(mine.sums[block / 2][column_block][block % 2 * 2 + i]);
    };
#pragma unroll
    for (int j = 0; j < Tile::kWarpN / 8; j += kBAlongK ? 2 : 4) {
      if constexpr (kBAlongK) {
        store4<Tile>(params, unit, {sum(j, 0), sum(j + 1, 0), sum(j, 1), sum(j + 1, 1)}, row,
                     mine.column + place<true>(j, t * 2));
      } else {
        // A lane has two quads that follow each other; after an exchange each of two stores has
        // neighbouring quads in neighbouring lanes, whole sectors of memory.
        const float4 low = {sum(j, 0), sum(j + 1, 0), sum(j + 2, 0), sum(j + 3, 0)};
        const float4 high = {sum(j, 1), sum(j + 1, 1), sum(j + 2, 1), sum(j + 3, 1)};
        const bool odd = t % 2 == 1;
        const float4 other = from_neighbour(odd ? low : high);
        const int column = mine.column + place<false>(j, t / 2 * 4 + t % 2);
        store4<Tile>(params, unit, odd ? other : low, row, column);
        store4<Tile>(params, unit, odd ? high : other, row, column + 8);
      }
    }
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
