// The tiles that the kernel is compiled for, and the sizes that the choice of one, the launch and
// the kernel must agree on. The product is Y^T = W X^T: the columns of D, which are W's, take the
// 64 rows of wgmma, and rows of X its N.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

inline constexpr int kWarpgroup = 128;
inline constexpr int kWarpgroupColumns = 64;  // of D: one row of qweight
inline constexpr int kStageK = 64;            // of X: 128 bytes, the swizzle's row
inline constexpr int kUnitSlot = 5120;        // the unit of most bytes: groups of 32 and zeros
inline constexpr int kMaxStages = 16;
inline constexpr int kMaxSplits = 4;   // of K: a warp's 16 columns have one receiver
inline constexpr int kMaxCluster = 8;  // CTAs
inline constexpr int kMaxSmemBytes = 227 * 1024;

// TILE(consumer warpgroups, rows of X, cycles for a unit of K): the columns of D are 64 for each
// warpgroup. Three of them read X once for 192 columns; two make smaller tiles, and have the
// registers for more rows. The cycles, all warpgroups' together, are what an H200 takes at 1650 MHz
// (select.cpp). Medium-M tiles: medium_m.cuh.
#define XGEMM_W4_MEDIUM_M_TILES(TILE) \
  TILE(2, 80, 823)                    \
  TILE(2, 96, 902)                    \
  TILE(3, 96, 1194)                   \
  TILE(2, 112, 945)                   \
  TILE(3, 112, 1336)                  \
  TILE(2, 128, 1049)                  \
  TILE(3, 128, 1561)                  \
  TILE(2, 160, 1265)                  \
  TILE(3, 160, 1905)
#define XGEMM_W4_LARGE_M_TILES(TILE) TILE(2, 192, 1502) TILE(2, 224, 1747) TILE(2, 256, 2027)
inline constexpr int kMaxMediumM = 160;

// Small-M tiles (small_m.cuh). TILE(blocks of 64 columns, warpgroups that share the K of each, rows
// of X, cycles for a unit of K).
inline constexpr int kMaxSmallM = 64;
#define XGEMM_W4_SMALL_M_TILES(TILE) \
  TILE(2, 2, 16, 446)                \
  TILE(1, 4, 16, 241)                \
  TILE(4, 1, 32, 985)                \
  TILE(2, 2, 32, 510)                \
  TILE(1, 4, 32, 285)                \
  TILE(2, 2, 48, 592)                \
  TILE(1, 4, 48, 360)                \
  TILE(2, 2, 64, 704)                \
  TILE(1, 4, 64, 428)

// Tiles of 80 and 112 rows lie between others. What would need kernels or loops of its own is left
// to those.
constexpr bool between_tiles(int rows) { return rows > kMaxSmallM && rows % 32 != 0; }

// Whether CTAs may share K: they exchange sums in shared memory, of which a tile must leave enough.
constexpr bool may_split(int consumers, int rows) {
  if (rows <= kMaxSmallM) return consumers * rows <= 128;
  return consumers * rows <= 256 && !between_tiles(rows);
}

// Scales of the 16-bit type that the activations do not have take more registers.
constexpr bool takes_foreign_scales(int rows) { return !between_tiles(rows); }

// Units of 128 k of a stage of tiles whose `parts` warpgroups share K: a load costs its thread some
// 200 cycles, and a unit of 64 columns takes little longer. (With two warpgroups 1 to 3 % slower.)
constexpr int stage_units(int parts) { return parts == 4 ? 2 : 1; }

// Boxes of 64 k of X, of a stage of so many units, that tiles of `rows` rows load at once. (Of 64
// rows and more fewer arrive sooner.)
constexpr int boxes_of_x(int rows, int units, int64_t k) {
  if (k % kStageK != 0) return 1;
  return rows <= 48 ? 2 * units : units;
}

// The workspace of CTAs that complete each other's sums: a flag for each warpgroup, then its sums.
struct StreamKWorkspace {
  int64_t flag_bytes, partial_bytes;
  constexpr int64_t bytes() const { return flag_bytes + partial_bytes; }
};
constexpr StreamKWorkspace stream_k_workspace(int rows, int columns, int ctas) {
  const int64_t warpgroups = int64_t{ctas} * (columns / kWarpgroupColumns);
  return {round_up<int64_t>(warpgroups * 8, 256), int64_t{ctas} * columns * rows * 4};
}

// Where `shares` CTAs (or clusters) take `parts` equal ranges of each tile's units of K, the one
// with a tile's beginning waits for the others' sums: the units that it has more of the tile than
// they would leave it. They are what it multiplies in the time that sums take to another CTA.
// (H200, 96 and 128 rows: 1 to 4 % less time. Where ranges begin and end anywhere it was no gain.)
constexpr int lead_of(int consumers, int rows, int64_t units, int64_t tiles_units, int64_t shares) {
  constexpr int kCycles = 3000;
  const int64_t share = tiles_units / shares;
  if (share < 2 || share * shares != tiles_units || units % share != 0) return 0;
  const int unit_cycles = 4 * consumers * (rows > 64 ? rows : 64);  // at the tensor cores' rate
  const int lead = (kCycles + unit_cycles / 2) / unit_cycles;
  return 2 * lead <= units ? lead : 0;
}

constexpr int least(int a, int b) { return a < b ? a : b; }

// What all tiles have: sizes of a warpgroup's and of a stage's shared memory.
template <int kConsumers_, int kRows_, bool kMaySplit_>
struct WarpgroupTile {
  static constexpr int kConsumers = kConsumers_, kRows = kRows_;  // warpgroups that store
  static constexpr int kColumns = kConsumers * kWarpgroupColumns;
  static constexpr bool kMaySplit = kMaySplit_;
  static_assert(kRows % 16 == 0, "a store takes 16 rows");

  // Of a warpgroup: its part of D, or what others send it of theirs and the slice it makes of it.
  static constexpr int kInboxBytes = kRows * kWarpgroupColumns * 4 / kMaxSplits * (kMaxSplits - 1);
  static constexpr int kSliceBytes = kRows * kWarpgroupColumns;  // halved, if not quartered
  static constexpr int kTileBytes = kRows * kWarpgroupColumns * 2;
  static constexpr int kOutBytes = kMaySplit ? kInboxBytes + kSliceBytes : kTileBytes;

  static constexpr int kXBytes = kRows * kStageK * 2;     // of 64 k
  static constexpr int kWBytes = kConsumers * kUnitSlot;  // of 128 k
  static constexpr int kControlBytes = 1024;              // barriers
  // What a pipeline has no room in; 1024: alignment.
  static constexpr int kOtherBytes = 1024 + kControlBytes + kConsumers * kOutBytes;
};

// Of Tiles of more than kMaxSmallM rows. Registers of a thread: of the 64 K, in multiples of 8.
template <int kConsumers, int kRows, bool kMaySplit>
struct LargeTile : WarpgroupTile<kConsumers, kRows, kMaySplit> {
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kStageUnits = 1;
  static constexpr int kPipelineBytes =
      kMaxSmemBytes - WarpgroupTile<kConsumers, kRows, kMaySplit>::kOtherBytes;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 152 : 232;
};

template <int kConsumers, int kRows>
struct TileConfig : LargeTile<kConsumers, kRows, may_split(kConsumers, kRows)> {
  using Base = LargeTile<kConsumers, kRows, may_split(kConsumers, kRows)>;
  // Whole units of K.
  static constexpr int kXStages =
      least(kMaxStages, Base::kPipelineBytes / (Base::kXBytes * 2 + Base::kWBytes) * 2);
  static constexpr int kWStages =
      least(8, (Base::kPipelineBytes - kXStages * Base::kXBytes) / Base::kWBytes);
  static_assert(kXStages >= 4 && kWStages >= 2, "a tile must leave room for a pipeline");
  static_assert(kConsumers == 2, "the registers of operands for 128 k");
};

// A tile of 80 to 160 rows (medium_m.cuh): a stage is W and X of 128 k. Where CTAs share K, it has
// less shared memory for stages.
template <int kConsumers, int kRows, bool kSplit>
struct MediumMConfig : LargeTile<kConsumers, kRows, kSplit> {
  using Base = LargeTile<kConsumers, kRows, kSplit>;
  static constexpr int kParts = 1, kSumsOfPart = 1, kSumsSlots = 1, kMeetings = 1;  // share K: none
  static constexpr int kWStages =
      least(kMaxStages, Base::kPipelineBytes / (2 * Base::kXBytes + Base::kWBytes));
  static_assert(kWStages >= 3, "a tile must leave room for a pipeline");

  // Words of codes, 16 k each, that a warpgroup dequantizes at a time, and operands of how many
  // such batches it holds. Two warpgroups dequantize while their own wgmmas run; of three,
  // while those of the others do: they need but one buffer, and have larger batches in their
  // registers. Small batches wait for what lies between them, a branch on the scales first.
  static constexpr int kWords = kRows > 128 ? 2 : kConsumers == 3 ? 8 : 4;
  static constexpr int kBuffers = kConsumers == 2 || kRows > 128 ? 2 : 1;
  static constexpr int kGeneralWords = kConsumers == 2 || kRows > 128 ? 2 : 1;  // in two buffers
};

// A small-M tile. kPlain: of the commonest format, which has kernels of its own: with loops for
// the others in the same kernel ptxas spilled, and 48 and 64 rows were 5 % slower.
template <int kBlocks, int kParts_, int kRows, bool kPlain_>
struct SmallMConfig : WarpgroupTile<kBlocks, kRows, may_split(kBlocks, kRows)> {
  using Base = WarpgroupTile<kBlocks, kRows, may_split(kBlocks, kRows)>;
  static constexpr bool kPlain = kPlain_;
  static constexpr int kParts = kParts_, kWarpgroups = kBlocks * kParts;
  static constexpr int kStageUnits = stage_units(kParts);
  static constexpr int kThreads = (kWarpgroups + 1) * kWarpgroup;
  static_assert(kRows <= kMaxSmallM);

  // float4 that a warpgroup gives another of the same columns, and for how many there is room.
  static constexpr int kSumsOfPart = kParts > 1 ? kRows / 8 * kWarpgroup : 1;
  static constexpr int kSumsSlots = kParts > 1 ? kParts / 2 : 1;
  static constexpr int kMeetings = kParts == 4 ? 4 : 2;  // a block's barriers (PartsExchange)
  static constexpr int kSumsBytes = kBlocks * kSumsSlots * kSumsOfPart * 16;
  static constexpr int kPipelineBytes = kMaxSmemBytes - Base::kOtherBytes - kSumsBytes;
  static constexpr bool kScaledSums = false;  // whatever the format: sums of groups are scaled
  static constexpr int kUnitBytes = 2 * Base::kXBytes + Base::kWBytes;
  static constexpr int kStagePeriod = kParts / kStageUnits;  // of warpgroups, a stage each
  static constexpr int kWStages =  // a stage has the same warpgroups at every pass
      least(kMaxStages, kPipelineBytes / (kStageUnits * kUnitBytes)) / kStagePeriod * kStagePeriod;
  static_assert(kWStages * kStageUnits >= 3, "a tile must leave room for a pipeline");

  static_assert(kWarpgroups == 4, "four have the registers of an SM");
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = 112;
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
