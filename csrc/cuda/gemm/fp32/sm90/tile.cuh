// The tiles of the kernels on the FP64 tensor cores, and how operands lie in shared memory.
#pragma once

#include "cuda/gemm/fp32/sm90/params.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

inline constexpr int kDepth = 32;  // k of a stage: a row of them is the swizzle's 128 bytes

template <int kBlockM_, int kBlockN_, int kWarpM_, int kWarpN_, int kStages_, int kCtasPerSm_>
struct Tile {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_;
  static constexpr int kWarpM = kWarpM_, kWarpN = kWarpN_;
  static constexpr int kStages = kStages_, kCtasPerSm = kCtasPerSm_;
  static constexpr int kWarpsN = kBlockN / kWarpN;
  static constexpr int kThreads = kBlockM / kWarpM * kWarpsN * 32;
  static_assert(kBlockM % kWarpM == 0 && kBlockN % kWarpN == 0, "whole warps");
  static_assert(kWarpM % 32 == 0 && kWarpN % 32 == 0, "rows lie in groups of 32");
};

// A warp waits for conversions and for shared memory: the other CTAs of its SM fill in. Copies by
// threads take more registers.
template <bool kTma>
using Tile64x64 = Tile<64, 64, 32, 32, 3, kTma ? 4 : 3>;
// Of few rows: B is read once.
using Tile32x128 = Tile<32, 128, 32, 32, 3, 3>;
// Of batches of small matrices, a warp each.
using Tile32x32 = Tile<32, 32, 32, 32, 2, 12>;

// An operand's tile lies along k as [kRows][32], else as [kRows / 32][32 k][32]. In both, chunks of
// 16 bytes of line i are at chunk ^ i % 8, as TMA's 128-byte swizzle has them.
template <typename Tile>
struct SharedStorage {
  struct Stage {
    float a[kDepth * Tile::kBlockM];
    float b[kDepth * Tile::kBlockN];
  };
  alignas(1024) Stage ring[Tile::kStages];
  uint64_t full[Tile::kStages];
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
