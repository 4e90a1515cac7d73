// Which tile and which part of K a CTA of a kernel with tiles has.
#pragma once

#include "cuda/gemm/fp32/plan.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::gemm::fp32 {

// What a CTA works on: the tile at (m, n) of a batch, and the part [k, k_end) of K.
struct Work {
  int64_t m, n, batch, k, k_end, plane;

  template <typename Tile>
  __device__ static Work at(const Params& params, int64_t index) {
    Work work;
    const int64_t per_plane = params.tiles_m * params.tiles_n;
    const int64_t plane = index / per_plane;
    work.place<Tile>(params, index % per_plane);
    work.batch = plane / params.splits;
    const int64_t split = plane % params.splits;
    work.plane = split * params.batches + work.batch;
    work.k = split * params.k_per_split;
    work.k_end = min(work.k + params.k_per_split, params.k);
    return work;
  }

  template <typename Tile, typename Index>
  __device__ void place(const Params& params, Index in_plane) {
    // Where K is short D is what takes time: its rows are better written to their end.
    constexpr int64_t kShortK = 128;
    const Index group_rows = (params.k <= kShortK ? 128 : 2048) / Tile::kBlockM;
    const layout::PlaceOf<Index> at =
        layout::grouped_tile(in_plane, static_cast<Index>(params.tiles_m),
                             static_cast<Index>(params.tiles_n), group_rows);
    m = int64_t{at.row} * Tile::kBlockM;
    n = int64_t{at.column} * Tile::kBlockN;
  }

  __device__ int k_tiles(int block_k = kBlockK) const {
    return ceil_div(static_cast<int>(max(k_end - k, int64_t{0})), block_k);
  }
};

}  // namespace xgemm::cuda::gemm::fp32
