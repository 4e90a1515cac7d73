// From the warps' sums to D, or to the sums of parts of K.
#pragma once

#include "cuda/gemm/fp32/sm90/fragment.cuh"
#include "cuda/gemm/fp32/sm90/unit.cuh"
#include "cuda/ptx/griddep.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

// A warp's sums in shared memory, on their way to whole lines of D.
template <typename Tile>
struct StagedSums {
  static constexpr int kRows = Tile::kWarpM, kColumns = Tile::kWarpN;
  static_assert(kColumns == 32, "a lane for each column, eight for the quads of a row");
  float at[kRows][kColumns + 4];

  // Blocks of eight columns lie so that a lane has quads of neighbouring ones.
  template <bool kAAlongK, bool kBAlongK>
  __device__ void put(const WarpTile<Tile, kAAlongK, kBAlongK>& mine) {
    const int t = mine.lane % 4;
#pragma unroll
    for (int block = 0; block < kRows / 8; ++block) {
      float* row = at[place<kAAlongK>(block, mine.lane / 4)];
      const auto sum = [&](int column_block, int i) {
        return static_cast<float>(mine.sums[block / 2][column_block][block % 2 * 2 + i]);
      };
      const auto put4 = [&](int column, float4 x) { *reinterpret_cast<float4*>(row + column) = x; };
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += kBAlongK ? 2 : 4) {
        const int column = place<kBAlongK>(j, t * 2);
        if constexpr (kBAlongK) {
          put4(column, {sum(j, 0), sum(j + 1, 0), sum(j, 1), sum(j + 1, 1)});
        } else {
          put4(column, {sum(j, 0), sum(j + 1, 0), sum(j + 2, 0), sum(j + 3, 0)});
          put4(column + 4, {sum(j, 1), sum(j + 1, 1), sum(j + 2, 1), sum(j + 3, 1)});
        }
      }
    }
  }

  // use(row, column, quad) of each quad that the lane has.
  template <typename Use>
  __device__ void for_quads(int lane, int rows, Use use) const {
    const int column = lane % 8 * 4;
#pragma unroll 4
    for (int row = lane / 8; row < rows; row += 4) {
      use(row, column, *reinterpret_cast<const float4*>(&at[row][column]));
    }
  }
};

// The code is short, as it runs once: where K is small most of a CTA's time was fetching it.
template <typename Tile, bool kAAlongK, bool kBAlongK>
__device__ inline void store_sums(const Params& params, const Unit& unit,
                                  const WarpTile<Tile, kAAlongK, kBAlongK>& mine,
                                  StagedSums<Tile>& staged) {
  staged.put(mine);
  __syncwarp();
  const int lane = mine.lane;
  const int64_t first_row = unit.work.m + mine.row, first_column = unit.work.n + mine.column;
  const int rows = static_cast<int>(min(params.m - first_row, int64_t{Tile::kWarpM}));
  const int columns = static_cast<int>(min(params.n - first_column, int64_t{Tile::kWarpN}));
  if (unit.part >= 0) {
    float* d = params.partials + int64_t{unit.part} * (Tile::kBlockM * Tile::kBlockN) +
               mine.row * Tile::kBlockN + mine.column;
    staged.for_quads(lane, rows, [&](int row, int column, float4 x) {
      *reinterpret_cast<float4*>(d + row * Tile::kBlockN + column) = x;
    });
    return;
  }
  float* d = params.d + unit.work.batch * params.batch[0].d + first_row * params.d_row_stride +
             first_column;
  if (params.plain && params.d_vector && columns % 4 == 0) {
    staged.for_quads(lane, rows, [&](int row, int column, float4 x) {
      if (column < columns) {
        *reinterpret_cast<float4*>(d + row * params.d_row_stride + column) =
            scale4(params.store_scale, x);
      }
    });
  } else if (params.plain) {
    if (lane >= columns) return;
    d += lane;
#pragma unroll 8
    for (int row = 0; row < rows; ++row, d += params.d_row_stride) {
      *d = params.store_scale * staged.at[row][lane];
    }
  } else {
#pragma unroll 1
    for (int row = lane / 8; row < rows; row += 4) {
      const int column = lane % 8 * 4;
      if (column >= columns) break;
      finish_row4(params, unit.work.batch,
                  *reinterpret_cast<const float4*>(&staged.at[row][column]), first_row + row,
                  first_column + column);
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
