// Tiles of the wgmma kernel for a mixture of experts, and what a CTA holds in shared memory.
#pragma once

#include "cuda/ptx/group_arrive.h"
#include "cuda/w4a16/grouped/tile.h"
#include "cuda/w4a16/sm90/wgmma/unit_pipeline.cuh"

namespace xgemm::cuda::w4a16::grouped::sm90 {

namespace wgmma = w4a16::sm90::wgmma;

// How a unit of W is read, by the names of wgmma::Params.
struct UnitFormat {
  int unit_bytes, strip_bytes, groups_per_unit;
  bool zeros, bf16_scales;
};

// kRows rows of one expert by 64 columns of its weight for each of four warpgroups, all of K. The
// names are those that wgmma::SmallMConsumer asks for.
template <int kRows_, bool kPlain_>
struct Tile {
  static constexpr int kRows = kRows_, kConsumers = kWgmmaBlocks;
  static constexpr bool kPlain = kPlain_;
  static constexpr int kParts = 1, kStageUnits = 1, kStagePeriod = 1;
  static constexpr bool kScaledWeights = false, kScaledSums = true;
  static constexpr int kThreads = (kConsumers + 1) * wgmma::kWarpgroup;
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = 112;

  // The sums of a warpgroup, rows 4 floats further apart than a multiple of 32, so that the lanes
  // of a fragment, 2 rows and 1 column apart, hit 32 banks.
  static constexpr int kStagingPitch = kColumns + 4;
  static constexpr int kOutBytes = kRows * kStagingPitch * 4;

  static constexpr int kXBytes = kRows * wgmma::kStageK * 2;     // of 64 k
  static constexpr int kWBytes = kConsumers * wgmma::kUnitSlot;  // of 128 k
  static constexpr int kMaxStages = 8;
  // The table of tiles, their rows, barriers; 2048: alignment.
  static constexpr int kOtherBytes =
      2 * (kMaxWgmmaExperts + 2) * 4 + (kMaxStages + 2) * kRows * 12 + 1024 + 2048;
  static constexpr int kWStages =
      wgmma::least(kMaxStages, (wgmma::kMaxSmemBytes - kOtherBytes - kConsumers * kOutBytes) /
                                   (2 * kXBytes + kWBytes));
  static_assert(kWStages >= 4, "a tile must leave room for a pipeline");

  // What a CTA does not share with others, but UnitStorage has.
  static constexpr int kSumsOfPart = 1, kSumsSlots = 1, kMeetings = 1;

  // Tiles whose rows may be known before the first of them has been stored: one for each stage, the
  // one that is stored, and the one whose rows are being found.
  static constexpr int kRowBuffers = kWStages + 2;
};

// Where the buckets of rows begin (those of the experts, then that of none): as places in the
// order, and in tiles.
struct TileTable {
  int place[kMaxWgmmaExperts + 2], tile[kMaxWgmmaExperts + 2];
};

// Of a tile: where each row of X begins, and its slot; -1 where it is none, whose X may be any.
template <int kRows>
struct TileRows {
  const char* x[kRows];
  int slot[kRows];
};

template <typename Tile>
struct Storage {
  wgmma::UnitStorage<Tile> pipeline;
  TileTable table;
  TileRows<Tile::kRows> rows[Tile::kRowBuffers];
};
template <typename Tile>
inline constexpr int kSmemBytes = sizeof(Storage<Tile>) + 1024;  // + alignment

}  // namespace xgemm::cuda::w4a16::grouped::sm90
