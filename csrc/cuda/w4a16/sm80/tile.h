// Tiles of the sm_80 kernel, and what a CTA holds in shared memory.
#pragma once

#include <cstdint>

#include "common/math.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16::sm80 {

inline constexpr int kUnitColumns = static_cast<int>(w4::kRowColumns);
inline constexpr int kUnitK = static_cast<int>(w4::kUnitK);
inline constexpr int kStripColumns = static_cast<int>(w4::kStripColumns);
// Codes, and as many groups' scales and zeros as a unit can have: of 32 k each.
inline constexpr int kMaxUnitBytes =
    kUnitK * kUnitColumns / 2 + 2 * (kUnitK / 32) * kUnitColumns * 2;
inline constexpr int kXRowBytes = kUnitK * 2;  // of X, along a unit's k

// A warp multiplies kStrips strips of a unit (64 columns x 128 k) by kRows8 x 8 rows of X. Of a
// CTA's warps, kWarpsM have different rows, kWarpsN different columns, and kWarpsK take the units
// along k in turns.
template <int kRows8_, int kStrips_, int kWarpsM_, int kWarpsN_, int kWarpsK_, int kCtasPerSm_,
          bool kScaledWeights_ = false>
struct TileConfig {
  static constexpr int kRows8 = kRows8_, kStrips = kStrips_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kWarpsK = kWarpsK_;
  static constexpr int kCtasPerSm = kCtasPerSm_;
  // Scales are multiplied into the weights, else into the sums of a group.
  static constexpr bool kScaledWeights = kScaledWeights_;
  static constexpr int kWarps = kWarpsM * kWarpsN * kWarpsK, kThreads = 32 * kWarps;
  static constexpr int kWarpRows = kRows8 * 8, kBlockM = kWarpRows * kWarpsM;
  static constexpr int kWarpColumns = kStripColumns * kStrips, kBlockN = kWarpColumns * kWarpsN;
  static constexpr int kUnitRows = kBlockN / kUnitColumns;  // of the packed weight
  static_assert(kUnitColumns % kWarpColumns == 0 && kBlockN % kUnitColumns == 0);
  // A stage: X [kWarpsK][kBlockM][128], then [kUnitRows][kWarpsK] units as they lie in memory.
  static constexpr int kXBytes = kWarpsK * kBlockM * kXRowBytes;
  // The sums of the warps along k: rows lie 4 floats further apart than a multiple of 16, so that
  // a fragment's lanes, 2 rows and 1 column apart, hit 32 banks.
  static constexpr int kStagingPitch = kBlockN + 4;
  static constexpr int kStagingBytes = kWarpsK * kBlockM * kStagingPitch * 4;
  static constexpr int kChannelBytes = 2 * kBlockN * 2;  // scales and zeros of group_size -1
  static_assert(kStagingPitch % 16 == 4, "staging must have no bank conflicts");

  XGEMM_HOST_DEVICE static constexpr int stage_bytes(int unit_bytes) {
    return kXBytes + kUnitRows * kWarpsK * unit_bytes;
  }
  XGEMM_HOST_DEVICE static constexpr int shared_bytes(int unit_bytes, int stages) {
    const int pipeline = stages * stage_bytes(unit_bytes);
    return kChannelBytes + (pipeline > kStagingBytes ? pipeline : kStagingBytes);
  }
};

// Narrow tiles whose warps share K spare partial sums between CTAs, and with them a second launch,
// where a product has few columns; wide ones read X less often. Of 19 tiles, 7 that are within 1 %
// of the best for 35 products on an H200. No two have the same rows and columns.
using Tile8 = TileConfig<1, 4, 1, 1, 8, 2>;
using Tile8Wide = TileConfig<1, 4, 1, 2, 2, 4>;
using Tile16 = TileConfig<2, 4, 1, 1, 8, 1>;
using Tile16Wide = TileConfig<2, 4, 1, 2, 2, 2>;
using Tile32 = TileConfig<4, 4, 1, 1, 4, 2>;
using Tile32Wide = TileConfig<4, 4, 1, 2, 2, 2>;
using Tile64 = TileConfig<8, 2, 1, 4, 1, 2>;  // half the strips: a code becomes a weight once
// All strips, so that a row of X is read half as often: for formats without zeros whose scales are
// of the activations' type.
using Tile64Wide = TileConfig<8, 4, 1, 4, 1, 2, true>;

inline constexpr int kMinStages = 2, kMaxStages = 4;

}  // namespace xgemm::cuda::w4a16::sm80
