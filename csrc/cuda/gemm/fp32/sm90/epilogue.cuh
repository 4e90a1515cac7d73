// From the warps' sums to D, or to the sums of parts of K.
#pragma once

#include "cuda/gemm/fp32/epilogue.cuh"
#include "cuda/gemm/fp32/sm90/fragment.cuh"
#include "cuda/gemm/fp32/sm90/work_tile.cuh"

namespace xgemm::cuda::gemm::fp32::sm90 {

// A tile's sums in shared memory, on their way to whole lines of D.
template <typename Tile>
struct StagedSums {
  static constexpr int kStride = Tile::kBlockN + 4;
  static constexpr int kRowsOfWarp = Tile::kBlockM / Tile::kWarps;
  static constexpr int kRowLanes = Tile::kBlockN / 4;  // that share a row, a quad each
  static_assert(kRowLanes <= 32 && Tile::kBlockM % Tile::kWarps == 0);
  float at[Tile::kSlices][Tile::kBlockM][kStride];

  // Blocks of eight columns lie so that a lane has quads of neighbouring ones.
  template <bool kAAlongK, bool kBAlongK, typename WarpTile>
  __device__ void put(const WarpTile& mine) {
    const int t = mine.lane % 4;
#pragma unroll
    for (int block = 0; block < Tile::kWarpM / 8; ++block) {
      float* row = at[mine.slice][mine.row + place<kAAlongK>(block, mine.lane / 4)] + mine.column;
      const auto sum = [&](int column_block, int i) {
        return static_cast<float>(mine.sums[block / 2][column_block][block % 2 * 2 + i]);
      };
      const auto put4 = [&](int column, float4 x) { *reinterpret_cast<float4*>(row + column) = x; };
#pragma unroll
      for (int j = 0; j < Tile::kWarpN / 8; j += kBAlongK ? 2 : 4) {
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

  // Of an element of the first slice and the same ones of the others.
  __device__ static float sum_of_slices(const float* first) {
    float sum = *first;
#pragma unroll
    for (int slice = 1; slice < Tile::kSlices; ++slice) {
      sum += first[slice * Tile::kBlockM * kStride];
    }
    return sum;
  }

  __device__ float4 quad(int row, int column) const {
    float4 sum = *reinterpret_cast<const float4*>(&at[0][row][column]);
#pragma unroll
    for (int slice = 1; slice < Tile::kSlices; ++slice) {
      const float4 x = *reinterpret_cast<const float4*>(&at[slice][row][column]);
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    return sum;
  }

  // use(row, column) of each quad that the lane has of the warp's rows below `rows`.
  template <typename Use>
  __device__ static void for_quads(int warp, int lane, int rows, Use use) {
    const int first = warp * kRowsOfWarp, column = lane % kRowLanes * 4;
    const int end = min(rows, first + kRowsOfWarp);
#pragma unroll 4
    for (int row = first + lane / kRowLanes; row < end; row += 32 / kRowLanes) use(row, column);
  }
};

// The code is short, as it runs once: where K is small most of a CTA's time was fetching it.
template <typename Tile>
__device__ inline void store_sums(const Params& params, const WorkTile& work_tile,
                                  const StagedSums<Tile>& staged, int warp, int lane) {
  using Staged = StagedSums<Tile>;
  const int rows = static_cast<int>(min(params.m - work_tile.work.m, int64_t{Tile::kBlockM}));
  const int columns = static_cast<int>(min(params.n - work_tile.work.n, int64_t{Tile::kBlockN}));
  if (work_tile.part >= 0) {
    float* d = params.partials + int64_t{work_tile.part} * (Tile::kBlockM * Tile::kBlockN);
    Staged::for_quads(warp, lane, rows, [&](int row, int column) {
      *reinterpret_cast<float4*>(d + row * Tile::kBlockN + column) = staged.quad(row, column);
    });
    return;
  }
  float* d = params.d + work_tile.work.batch * params.batch[0].d +
             work_tile.work.m * params.d_row_stride + work_tile.work.n * params.d_col_stride;
  if (params.plain && params.d_vector && columns % 4 == 0) {
    Staged::for_quads(warp, lane, rows, [&](int row, int column) {
      if (column >= columns) return;
      *reinterpret_cast<float4*>(d + row * params.d_row_stride + column) =
          scale4(params.store_scale, staged.quad(row, column));
    });
  } else if (params.scaled_sums && (params.d_col_stride == 1 || params.d_row_stride == 1)) {
    // 32 neighbours at a time: of a row that is not aligned, or of a column.
    const bool along_rows = params.d_col_stride == 1;
    const int across = (along_rows ? Tile::kBlockN : Tile::kBlockM) / 32;
    const int lines = (along_rows ? Tile::kBlockM : Tile::kBlockN) * across / Tile::kWarps;
    const int at = warp % across * 32 + lane, first = warp / across * lines;
    if (at >= (along_rows ? columns : rows)) return;
    const int row = along_rows ? first : at, column = along_rows ? at : first;
    const int64_t d_step = along_rows ? params.d_row_stride : params.d_col_stride;
    const int step = along_rows ? Staged::kStride : 1;
    const float* from = &staged.at[0][row][column];
    d += row * params.d_row_stride + column * params.d_col_stride;
    const int count = min((along_rows ? rows : columns) - first, lines);
#pragma unroll 8
    for (int line = 0; line < count; ++line, from += step, d += d_step) {
      *d = params.alpha * Staged::sum_of_slices(from);
    }
  } else {
    // C of some rows at a time: one latency for all of them.
    constexpr int kGroup = 4, kStep = 32 / Staged::kRowLanes;
    const int first = warp * Staged::kRowsOfWarp, end = min(rows, first + Staged::kRowsOfWarp);
    const int column = lane % Staged::kRowLanes * 4;
    if (column >= columns) return;
#pragma unroll 1
    for (int row = first + lane / Staged::kRowLanes; row < end; row += kGroup * kStep) {
      float4 c[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        c[i] = load_c4(params, work_tile.work.batch,
                       work_tile.work.m + min(row + i * kStep, end - 1), work_tile.work.n + column);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int at = row + i * kStep;
        if (at >= end) break;
        finish_row4(params, work_tile.work.batch, staged.quad(at, column), c[i],
                    work_tile.work.m + at, work_tile.work.n + column);
      }
    }
  }
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
