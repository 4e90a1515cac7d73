// Tiles of the sm_80 kernel, and how operands lie in shared memory.
#pragma once

#include <cstdint>

#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::gemm::sm80 {

inline constexpr int kChunkElements = 8;  // 16 bytes: a row of ldmatrix, a swizzled unit

// What the kernel is compiled for.
template <int kBlockM_, int kBlockN_, int kBlockK_, int kWarpsM_, int kWarpsN_, int kStages_,
          int kStagedRows_ = 16>
struct TileConfig {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kBlockK = kBlockK_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kStages = kStages_;
  static constexpr int kStagedRows = kStagedRows_;  // that a warp stores at a time
  static constexpr int kWarpM = kBlockM / kWarpsM, kWarpN = kBlockN / kWarpsN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static_assert(kBlockK % 32 == 0, "fragments are double-buffered over an even number of k16");
  static_assert(kWarpM % 16 == 0 && kWarpN % 32 == 0, "a warp has whole m16 and n16 fragments");
  static_assert(kWarpM <= 64 && kWarpN <= 64, "the swizzle's XOR reaches over 8 chunks");
  static_assert(kStagedRows == 8 || kStagedRows == 16, "half of a fragment's rows, or all");
  static_assert(kStages >= 3, "a tile is fetched while one is read and one has landed");
};

// At most 99 KB of shared memory, as sm_86 and sm_89 have no more, but for the large one: at most
// the 163 KB of sm_80. Its k is a whole line of L2.
using TileLarge = TileConfig<128, 256, 64, 2, 4, 3, 8>;
using TileMedium = TileConfig<128, 128, 32, 2, 2, 4>;   // two CTAs on an SM
using TileGeneral = TileConfig<128, 128, 32, 2, 4, 4>;  // registers to spare for the loads
using TileSmall = TileConfig<64, 64, 32, 2, 2, 4>;

// An operand's [kRows, kBlockK] tile in shared memory: lines of kChunks chunks. A line is a row's
// k; where the operand is contiguous along its rows (kMnMajor), it is 64 rows at one k, and a tile
// is panels of 64 rows side by side, so that a thread's chunks in all of them are a constant apart.
template <int kRows_, int kBlockK_, bool kMnMajor_>
struct TileLayout {
  static constexpr int kRows = kRows_, kBlockK = kBlockK_;
  static constexpr bool kMnMajor = kMnMajor_;
  static constexpr int kElements = kRows * kBlockK;
  static constexpr int kPanelRows = kMnMajor ? 64 : kRows, kPanels = kRows / kPanelRows;
  static constexpr int kLines = kMnMajor ? kBlockK : kRows;  // of a panel
  static constexpr int kChunks = (kMnMajor ? kPanelRows : kBlockK) / kChunkElements;
  static constexpr int kLineBytes = kChunks * 16, kPanelBytes = kLines * kLineBytes;
  static_assert(kRows % kPanelRows == 0, "whole panels");
  static_assert(kChunks == 4 || kChunks == 8, "64 bytes, or a line of 128");

  // Byte offset of a chunk; those of a line go on through the panels. Swizzled, so that the 8 rows
  // that ldmatrix reads at one logical column lie in 8 different groups of 4 banks.
  __device__ static constexpr int offset(int line, int chunk) {
    const int twist = layout::swizzle_xor(line, kChunks == 4 ? 2 : 3);
    return chunk / kChunks * kPanelBytes + line * kLineBytes + (chunk % kChunks ^ twist) * 16;
  }
};

}  // namespace xgemm::cuda::gemm::sm80
