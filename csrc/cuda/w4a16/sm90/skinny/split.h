// How the skinny kernel shares out K, and what lies where in shared memory. Pure: the host
// plans with it, and tests look at it without a GPU.
#pragma once

#include <cstdint>

#include "common/math.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16::sm90::skinny {

// A tile is 32 columns of D or 64: two strips, which are contiguous in a unit, or all four. Wide
// tiles read the weight in pieces of twice the size and take fewer instructions, but are fewer;
// they are for the commonest format and as many rows as one mma takes.
inline constexpr int kNarrowStrips = 2, kWideStrips = 4;
inline constexpr int kMmaRows = 8;      // rows of X that one mma takes
inline constexpr int kMaxMmaTiles = 3;  // of kMmaRows
inline constexpr int kMaxRows = kMmaRows * kMaxMmaTiles;
inline constexpr int kMaxWarps = 16, kMaxStages = 8, kMaxCluster = 8;
// mma tiles, at most. `fine` as in Split: with three of them registers would be too few.
XGEMM_HOST_DEVICE constexpr int most_mma_tiles(bool fine) { return fine ? 2 : kMaxMmaTiles; }
// Warps that stream, at most, for a number of mma tiles: what registers allow.
XGEMM_HOST_DEVICE constexpr int most_warps(int mma_tiles, bool fine) {
  return mma_tiles == 1 ? kMaxWarps : mma_tiles == 2 ? (fine ? 12 : kMaxWarps) : 10;
}
// Units of 64 columns that a CTA asks L2 for before anything else; twice as many delay X. Of more
// rows than kPieceFirstRows X is what is late, and a warp asks for it before its first piece.
inline constexpr int kPrefetchUnits = 8, kPieceFirstRows = 2;
// Rows that a warp adds up: fewer where registers allow more warps.
XGEMM_HOST_DEVICE constexpr int reducer_rows(int mma_tiles) { return mma_tiles == 1 ? 2 : 4; }
inline constexpr int kMaxReducerRows = 4;
inline constexpr int kMaxReducers = kMaxRows / kMaxReducerRows;
static_assert(kMmaRows / reducer_rows(1) <= kMaxReducers);
inline constexpr int kMaxBuffers = 2;  // of a tile's sums
inline constexpr int kSmemBytes = 227 * 1024;

// A row of X in shared memory has 16 bytes more than its channels: the 8 rows that ldmatrix takes
// at once start in 8 bank groups.
inline constexpr int kXPadding = 16;
// Floats of a row of a warp's sums: the tile's columns, then the sum of X's row. A lane stores at
// columns gid and rows 2 tig: twice the pitch is 8 (mod 32), so that no two of them share a bank.
XGEMM_HOST_DEVICE constexpr int sum_pitch(int strips) {
  return strips * static_cast<int>(w4::kStripColumns) + 4;
}
// Of X's rows of an mma over a group.
inline constexpr int kSumsOfXBytes = kMmaRows * 4;

struct Barriers {
  uint64_t sums_full[kMaxBuffers], sums_empty[kMaxBuffers];
  uint64_t inbox_full[kMaxReducers][2], inbox_empty[kMaxReducers][2];
  uint64_t full[kMaxWarps][kMaxStages];
};

// Sums that the CTAs of a cluster send each other: [reducers][2 buffers][16-byte pieces].
inline constexpr int kInboxPieces = 32;  // a lane's each
inline constexpr int kInboxBytes = kMaxReducers * 2 * kInboxPieces * 16;

// The tiles of a cluster: the first `extra` clusters have one more than the others, of
// `extra_strips`: as few as give all that are left to one wave.
struct Waves {
  int each, extra, extra_strips;

  constexpr int most() const { return each + (extra > 0 ? 1 : 0); }
};
constexpr Waves share_tiles(int strips, int clusters, int tile_strips) {
  const int each = strips / tile_strips / clusters;
  const int left = strips - each * clusters * tile_strips;
  int extra_strips = 1;
  while (extra_strips * clusters < left) extra_strips *= 2;
  return {each, ceil_div(left, extra_strips), extra_strips};
}

// Offsets into shared memory. Barriers come first.
struct SharedPlan {
  int inbox, x, x_sums, sums, pipeline;
  int64_t bytes;
};

// Each CTA of a cluster has a part of K, and each of its warps a part of that. What a sum is made
// of, and so its bits, depends on the cluster and the warps, and on nothing else.
struct Split {
  int rows, warps, stages, cluster;
  int strips;       // of a tile
  int units;        // of K, at least `cluster` times `warps`
  int piece_bytes;  // a copy: a unit of the tile's strips
  bool fine;        // groups of fewer channels than a unit's

  constexpr int mma_tiles() const { return ceil_div(rows, kMmaRows); }
  constexpr int reducers() const { return ceil_div(rows, reducer_rows(mma_tiles())); }

  constexpr int most_units() const { return ceil_div(units, cluster); }  // of a CTA
  constexpr int least_units() const { return units / cluster; }
  constexpr int64_t x_pitch() const { return most_units() * w4::kUnitK * 2 + kXPadding; }
  // Of sums. Two let the warps be a tile ahead of those who add up; of many rows they take room
  // that the pipeline needs more.
  constexpr int buffers() const { return rows > kMmaRows ? 1 : 2; }

  constexpr SharedPlan plan() const {
    const int inbox = round_up(static_cast<int>(sizeof(Barriers)), 128);
    const int x = inbox + (cluster > 1 ? kInboxBytes : 0);
    const int64_t x_sums = x + round_up(rows * x_pitch(), int64_t{128});
    const int64_t groups = int64_t{mma_tiles()} * most_units() * (fine ? 4 : 1);
    const int64_t sums = x_sums + round_up(groups * kSumsOfXBytes, int64_t{128});
    const int64_t pipeline =
        sums + round_up(int64_t{buffers()} * warps * rows * sum_pitch(strips) * 4, int64_t{128});
    const int64_t bytes = pipeline + warps * stages * piece_bytes;
    return {inbox, x, static_cast<int>(x_sums), static_cast<int>(sums), static_cast<int>(pipeline),
            bytes};
  }
};

}  // namespace xgemm::cuda::w4a16::sm90::skinny
