// Tiles of the kernel for a mixture of experts, and what a CTA holds in shared memory.
#pragma once

#include <cstdint>

#include "common/math.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16::grouped {

// Sums over k are those of so many parts, added in order: by every kernel and tile, so that all of
// them give a row the same bits.
inline constexpr int kParts = 4;
// The units of k before a part.
XGEMM_HOST_DEVICE constexpr int begin_of_part(int units, int part) { return units * part / kParts; }

// A part for each warp. Four, so that several CTAs share an SM and one of them has copies under way
// while another finds its rows or adds its sums.
inline constexpr int kWarps = kParts, kThreads = 32 * kWarps;
inline constexpr int kColumns = static_cast<int>(w4::kRowColumns);  // of W, of a CTA
inline constexpr int kMaxStages = 4;

// Rows of a tile by mma.sync, from those of an expert on average: half as many more are not rare,
// and a tile that is too short reads its weight twice.
constexpr int mma_sync_rows(double average) { return average <= 6 ? 8 : average <= 14 ? 16 : 32; }

// By wgmma a CTA has kBlocks times as many columns, and a table of so many experts' tiles.
inline constexpr int kWgmmaBlocks = 4, kMaxWgmmaExperts = 512;
inline constexpr int kChannelBytes = 2 * kColumns * 2;  // scales and zeros of group_size -1
inline constexpr int kXRowBytes = static_cast<int>(w4::kUnitK) * 2;

// kBlockM rows of one expert by 64 columns of its weight, of which all warps compute a part along
// k. The names are those that sm80::WarpMma asks for.
template <int kRows8_, int kCtasPerSm_>
struct TileConfig {
  static constexpr int kRows8 = kRows8_, kStrips = 4, kBlockM = 8 * kRows8, kBlockN = kColumns;
  static constexpr int kCtasPerSm = kCtasPerSm_;
  static constexpr bool kScaledWeights = false;
  static constexpr int kXBytes = kBlockM * kXRowBytes;  // of a stage
  static constexpr int kRowsBytes = kBlockM * 8;        // where each row of X begins
  static_assert(kRowsBytes % 16 == 0, "what follows is copied to by 16 bytes");
  // The warps' sums: rows lie 4 floats further apart than a multiple of 16, so that a fragment's
  // lanes, 2 rows and 1 column apart, hit 32 banks.
  static constexpr int kStagingPitch = kBlockN + 4;
  static constexpr int kStagingBytes = kWarps * kBlockM * kStagingPitch * 4;

  // A stage of a warp is X [kBlockM, 128], then a unit as it lies in memory.
  XGEMM_HOST_DEVICE static constexpr int stage_bytes(int unit_bytes) {
    return kXBytes + unit_bytes;
  }
  XGEMM_HOST_DEVICE static constexpr int shared_bytes(int unit_bytes, int stages) {
    const int pipelines = kWarps * stages * stage_bytes(unit_bytes);
    return kRowsBytes + kChannelBytes + (pipelines > kStagingBytes ? pipelines : kStagingBytes);
  }
};

using Tile8 = TileConfig<1, 4>;
using Tile16 = TileConfig<2, 3>;
using Tile32 = TileConfig<4, 2>;

}  // namespace xgemm::cuda::w4a16::grouped
