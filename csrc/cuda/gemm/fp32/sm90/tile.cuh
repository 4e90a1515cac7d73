// A tile as the kernels on the FP64 tensor cores are compiled for it, and how operands lie in
// shared memory.
#pragma once

#include <cstdint>

#include "cuda/gemm/fp32/sm90/params.h"
#include "cuda/gemm/fp32/sm90/tiles.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

template <TileShape kShape_, Precision kPrecision_, bool kTma_>
struct Tile {
  static constexpr TileShape kShape = kShape_;
  static constexpr Precision kPrecision = kPrecision_;
  static constexpr bool kTma = kTma_;  // else threads copy
  static constexpr int kBlockM = kShape.block_m, kBlockN = kShape.block_n;
  static constexpr int kWarpM = 32, kWarpN = 32;
  static constexpr int kStages = kShape.stages;
  // Tiles that are under way or being read. A stage's last fragments are still on their way to
  // registers when the next stage is waited for. Conversions to float64 have seen them by then, so
  // that the stage can be given away; products of TF32 have not, and leave it to the next round.
  static constexpr int kPrefetched = kPrecision == Precision::kIeee ? kStages : kStages - 1;
  static constexpr int kCtasPerSm = kTma ? kShape.ctas_of_tma : kShape.ctas_of_copies;
  static constexpr int kWarpsN = kBlockN / kWarpN;
  static constexpr int kSlices = kShape.slices;
  static constexpr int kWarps = kShape.warps(), kThreads = kWarps * 32;
  static constexpr int kBoxes = kShape.boxes(), kStageDepth = kShape.stage_depth();
  static constexpr int kPairs = kStageDepth / kPairOfSteps / kSlices;  // of a warp in a stage
  static_assert(kBlockM % kWarpM == 0 && kBlockN % kWarpN == 0, "whole warps");
  static_assert(kSlices == 1 || (kSlices == 4 && kBlockM * kBlockN == kWarpM * kWarpN),
                "four warps share all of the tile, or none does");
};

// An operand's box lies along k as [kRows][32], else as [kRows / 32][32 k][32]. In both, chunks of
// 16 bytes of line i are at chunk ^ i % 8, as TMA's 128-byte swizzle has them.
template <typename Tile>
struct SharedStorage {
  struct Stage {
    float a[Tile::kBoxes][kDepth * Tile::kBlockM];
    float b[Tile::kBoxes][kDepth * Tile::kBlockN];
  };
  alignas(1024) Stage stages[Tile::kStages];
  uint64_t full[Tile::kStages];
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
