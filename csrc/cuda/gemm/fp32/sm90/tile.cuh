// The tiles of the kernels that TMA feeds: every warp has 64 x 64 of the result, so that all of
// them have the large tile's main loop; in the smaller ones warps share K.
#pragma once

#include "cuda/gemm/fp32/sm90/params.h"
#include "cuda/gemm/fp32/thread_tile.cuh"

namespace xgemm::cuda::gemm::fp32::sm90 {

// kWarpsK warps have the same part of the result and sum up parts of a stage's kDepth of k.
template <int kWarpsM, int kWarpsN, int kWarpsK_, int kDepth_>
struct TmaTile : TileConfig<64 * kWarpsM, 64 * kWarpsN, 8, 16, 3, 2, false> {
  using Base = TileConfig<64 * kWarpsM, 64 * kWarpsN, 8, 16, 3, 2, false>;
  static constexpr int kWarpsK = kWarpsK_, kDepth = kDepth_;
  static constexpr int kThreads = Base::kThreads * kWarpsK;
  static constexpr int kDepthOfWarp = kDepth / kWarpsK;
  static_assert(kDepth % 32 == 0, "rows along k are brought 32 k at a time");
};

using Tile128x128 = TmaTile<2, 2, 1, 32>;
using Tile128x64 = TmaTile<2, 1, 2, 32>;
using Tile64x64 = TmaTile<1, 1, 4, 64>;

// An operand's stages, [kDepth][kRows] each. Where the operand lies along k the last one is raw, as
// TMA brings it: [kDepth / 32][kRows][32] with the 128-byte swizzle.
template <int kRows_, int kDepth_>
struct OperandTile {
  static constexpr int kRows = kRows_, kDepth = kDepth_;
  static constexpr int kStages = 3, kRaw = kStages - 1;
  static constexpr int kStageBytes = 4 * kRows * kDepth;
  alignas(1024) float stage[kStages][kDepth * kRows];
};

template <typename Tile>
struct SharedStorage {
  union {
    struct {
      OperandTile<Tile::kBlockM, Tile::kDepth> a;
      OperandTile<Tile::kBlockN, Tile::kDepth> b;
    };
    float sums[Tile::kWarpsK][Tile::kBlockM * Tile::kBlockN];  // see SumsOfWarps
  };
  uint64_t full[3], full_raw;
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
