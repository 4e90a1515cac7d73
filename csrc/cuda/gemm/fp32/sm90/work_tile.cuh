// What a CTA computes.
#pragma once

#include "cuda/gemm/fp32/sm90/tile.cuh"
#include "cuda/gemm/fp32/work.cuh"

namespace xgemm::cuda::gemm::fp32::sm90 {

// A tile, or a part of K of one.
struct WorkTile {
  Work work;
  int part;  // of all parts; negative: the whole tile

  // Whole tiles come first. The others' parts are shorter: they fill what the SMs, of which some
  // are slower than others, would idle in the end.
  template <typename Tile>
  __device__ static WorkTile at(const Params& params, int index) {
    const int splits = params.splits;
    WorkTile work_tile;
    work_tile.part = index - params.whole;
    const int tile = work_tile.part < 0 ? index : params.whole + work_tile.part / splits;
    work_tile.place<Tile>(params, tile);
    work_tile.work.k = work_tile.part < 0 ? 0 : work_tile.part % splits * params.k_per_split;
    work_tile.work.k_end =
        work_tile.part < 0 ? params.k : min(work_tile.work.k + params.k_per_split, params.k);
    return work_tile;
  }

 private:
  template <typename Tile>
  __device__ void place(const Params& params, int tile) {
    const int per_plane = static_cast<int>(params.tiles_m * params.tiles_n);
    work.place<Tile>(params, tile % per_plane);
    work.batch = tile / per_plane;
  }
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
