// How the kernel for few rows shares out K, and what lies where in shared memory. Pure: the host
// plans with it, and tests look at it without a GPU.
#pragma once

#include <cstdint>

#include "common/math.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16::sm90::rows {

inline constexpr int kTileColumns = 32;  // of D: two strips, which are contiguous in a unit
inline constexpr int kTileStrips = 2;
inline constexpr int kMmaRows = 8;       // rows of X that one mma takes
inline constexpr int kMostMmaTiles = 3;  // of kMmaRows
inline constexpr int kMostRows = kMmaRows * kMostMmaTiles;
inline constexpr int kMostWarps = 16, kMostStages = 8, kMostCluster = 8;
// Warps that stream, at most, for a number of mma tiles: what registers allow.
XGEMM_HOST_DEVICE constexpr int most_warps(int mma_tiles) {
  return mma_tiles == 1 ? kMostWarps : mma_tiles == 2 ? 14 : 9;
}
inline constexpr int kMostBuffers = 2 * kMostWarps;
inline constexpr int kSmemBytes = 227 * 1024;

// A row of X in shared memory has 16 bytes more than its channels: the 8 rows that ldmatrix takes
// at once start in 8 bank groups.
inline constexpr int kXPadding = 16;
// Floats of a row of a warp's sums: 32 columns, then the sum of X's row. A lane stores at columns
// gid and rows 2 tig: 2 * 36 = 8 (mod 32), so that no two of them share a bank.
inline constexpr int kSumPitch = 36;
inline constexpr int kSumOfX = kTileColumns;

struct Barriers {
  uint64_t x;
  uint64_t sums_full[kMostBuffers], sums_empty[kMostBuffers];
  uint64_t inbox_full[kMostMmaTiles][2], inbox_empty[kMostMmaTiles][2];
  uint64_t ring[kMostWarps][kMostStages];
};

// Sums that the CTAs of a cluster send each other: [mma tiles][2 buffers][16-byte pieces].
inline constexpr int kInboxPieces = kMmaRows * kTileColumns / 4;
inline constexpr int kInboxBytes = kMostMmaTiles * 2 * kInboxPieces * 16;

// Offsets into shared memory. Barriers come first.
struct SharedPlan {
  int inbox, x, sums, ring;
  int64_t bytes;
};

// Each CTA of a cluster has a part of K, and cuts it into runs: a warp takes one at a time. What a
// sum is made of, and so its bits, depends on the cluster and the runs, and on nothing else.
struct Split {
  int rows, warps, stages, cluster;
  int run;          // units
  int units;        // of K, at least `cluster`
  int piece_bytes;  // a copy: a unit of the tile's strips

  constexpr int most_units() const { return ceil_div(units, cluster); }  // of a CTA
  constexpr int least_units() const { return units / cluster; }
  constexpr int most_parts() const { return ceil_div(most_units(), run); }
  constexpr int least_parts() const { return ceil_div(least_units(), run); }
  constexpr int64_t x_pitch() const { return most_units() * w4::kUnitK * 2 + kXPadding; }
  // Of sums: a warp that has done a run must seldom wait for those who add up. The warps are at up
  // to ceil(warps / parts) tiles at once.
  constexpr int buffers() const { return 2 * ceil_div(warps, least_parts()); }

  constexpr SharedPlan plan() const {
    const int inbox = round_up(static_cast<int>(sizeof(Barriers)), 128);
    const int x = inbox + (cluster > 1 ? kInboxBytes : 0);
    const int64_t sums = x + round_up(rows * x_pitch(), int64_t{128});
    const int64_t ring =
        sums + round_up(int64_t{buffers()} * most_parts() * rows * kSumPitch * 4, int64_t{128});
    const int64_t bytes = ring + warps * stages * piece_bytes;
    return {inbox, x, static_cast<int>(sums), static_cast<int>(ring), bytes};
  }
};

}  // namespace xgemm::cuda::w4a16::sm90::rows
