// Sizes that the choice of a tile, the launch and the skinny kernel must agree on.
//
// The GEMM is seen from its wide operand: D'[wide, narrow] = W[wide, K] X[narrow, K]^T, where W is
// b and X is a if the problem has no more rows than columns, else the other way round. The wide
// side takes the 64 rows of wgmma.
#pragma once

#include "cuda/gemm/sm90/operand.h"

namespace xgemm::cuda::gemm::sm90::skinny {

inline constexpr int kWarpgroupRows = 64;  // of W: one wgmma
inline constexpr int kMaxWarpgroups = 2;
inline constexpr int kMaxStages = 32;
inline constexpr int kMaxSmemBytes = 227 * 1024;

// The columns of D' that a tile has, wgmma's N. X that is not K-major is loaded 64 columns at once.
inline constexpr int kColumns[] = {8, 16, 24, 32, 48, 64, 96, 128};

struct Config {
  int rows, columns;  // of D' that a tile has
  int stages;
  int splits;  // of K, by the CTAs of a cluster
  int ctas;    // of the grid
};

constexpr int warpgroups_of(int rows) { return (rows + kWarpgroupRows - 1) / kWarpgroupRows; }
// Boxes of 64 k in a stage: two where a stage of one would be small (measured: 128 contiguous bytes
// a row at once are slower than 256).
constexpr int boxes_of(int warpgroups, int columns) {
  return columns <= 64 && warpgroups * kWarpgroupRows + columns <= 160 ? 2 : 1;
}
// Of a tile whose K many CTAs share each finishes some columns, where there are many: then all of
// its warps have a part in it. Else it finishes some rows.
constexpr bool finishes_columns(int columns, int splits) { return columns >= 64 && splits > 2; }
// Of eight columns, that a CTA finishes at most.
constexpr int most_groups(int columns, int splits) { return (columns / 8 + splits - 1) / splits; }
// Of the parts of K a warpgroup's inbox holds one from each other CTA, of what this one finishes.
constexpr int inbox_bytes(int columns, int splits) {
  const int elements = finishes_columns(columns, splits)
                           ? kWarpgroupRows * most_groups(columns, splits) * 8
                           : kWarpgroupRows / splits * columns;
  return (splits - 1) * elements * 4;
}
// Columns that a warp turns around at once on their way to D, and elements from one to the next,
// with which they are free of bank conflicts.
constexpr int staged_columns(int columns) {
  return columns <= 8 ? 16 : columns < 32 ? (columns + 15) / 16 * 16 : 32;
}
inline constexpr int kStagingPitch = 24;

constexpr int stage_bytes(int rows, int columns) {
  return boxes_of(warpgroups_of(rows), columns) * (rows + columns) * kSwizzleElements * 2;
}
// What shared memory holds besides the pipeline: barriers, staging and inboxes. Or, if that is
// more, what the last wgmma of a tile reads beyond `rows`.
constexpr int beside_pipeline_bytes(int rows, int columns, int splits) {
  const int warpgroups = warpgroups_of(rows);
  const int staging = 4 * staged_columns(columns) * kStagingPitch * 2;
  const int control = warpgroups * (inbox_bytes(columns, splits) + staging + 16) + kMaxStages * 16;
  const int beyond = (warpgroups * kWarpgroupRows - rows) * kSwizzleElements * 2;
  return (control > beyond ? control : beyond) + 1024;  // + alignment
}

}  // namespace xgemm::cuda::gemm::sm90::skinny
