// Tiles of the fp32 kernels, and how operands lie in shared memory.
#pragma once

#include "cuda/gemm/fp32/plan.h"

namespace xgemm::cuda::gemm::fp32 {

// An operand's tile in shared memory is [kBlockK][kRows]. Where it is written by rows of k, these
// are padded by a chunk: neither eight neighbouring k of four rows, nor four chunks of rows at k
// and at k + 4 collide in banks.
template <int kRows>
inline constexpr int kTileStride = kRows + 4;

// What the kernel is compiled for: a thread has kThreadM x kThreadN of D, in quads of rows and of
// columns that lie a warp's width apart.
template <int kBlockM_, int kBlockN_, int kThreadM_, int kThreadN_, int kStages_, int kCtasPerSm_>
struct TileConfig {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_;
  static constexpr int kThreadM = kThreadM_, kThreadN = kThreadN_;
  static constexpr int kStages = kStages_, kCtasPerSm = kCtasPerSm_;
  // Lanes of a warp along D's rows, and along its columns.
  static constexpr int kLanesM = kThreadN > kThreadM ? 8 : 4, kLanesN = 32 / kLanesM;
  static constexpr int kStrideA = kTileStride<kBlockM>;
  static constexpr int kStrideB = kTileStride<kBlockN>;
  static constexpr int kWarpM = kThreadM * kLanesM, kWarpN = kThreadN * kLanesN;
  static constexpr int kWarpsM = kBlockM / kWarpM, kWarpsN = kBlockN / kWarpN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static_assert(kWarpsM * kWarpM == kBlockM && kWarpsN * kWarpN == kBlockN, "whole warps");
  static_assert(kThreadM % 4 == 0 && kThreadN % 4 == 0, "fragments are read 16 bytes at a time");
};

// Shared memory gives a warp four values a lane in four cycles, in which an SM does 16 warps' FMAs:
// a thread's tile must be this large for the reads to stay under the arithmetic.
using TileLarge = TileConfig<128, 128, 16, 8, 3, 2>;
using TileSmall = TileConfig<64, 64, 8, 8, 4, 6>;
using TileFlat = TileConfig<16, 128, 4, 4, 4, 6>;

inline constexpr int kMaxGemvThreads = 32 * kMaxGemvWarps;  // of the gemv kernels

}  // namespace xgemm::cuda::gemm::fp32
