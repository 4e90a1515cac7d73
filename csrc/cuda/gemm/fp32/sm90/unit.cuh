// What a CTA computes.
#pragma once

#include "cuda/gemm/fp32/sm90/tile.cuh"
#include "cuda/gemm/fp32/work.cuh"

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

}  // namespace xgemm::cuda::gemm::fp32::sm90
