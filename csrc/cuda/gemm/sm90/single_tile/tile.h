// Sizes that the choice of a tile, the launch and the kernel for small products must agree on.
#pragma once

#include <cstdint>

#include "common/math.h"
#include "cuda/tile/raster.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

inline constexpr int kOperands = 2;  // each has a warp that asks for it
inline constexpr int kCluster = 4;   // CTAs, where there are clusters
inline constexpr int kChunkK = 64;   // k of a stage: 128 bytes, the swizzle's row

// What a kernel is compiled for: the most rows and columns of D that a tile has, stages of K, and
// whether both operands lie along K.
struct Shape {
  int block_m, block_n, stages;
  bool k_major_only = false;
  // A warpgroup has more than 64 columns to finish. (Two share the 64 rows of a narrow tile.)
  constexpr bool wide() const { return block_m > 64 && block_n > 64; }
  // An A along M and a B along K take few of the wide tiles: those whose columns, which are cut to
  // any number, would be parts of boxes on the other side of D.
  constexpr bool compiled_for(bool a_mn, bool b_mn) const {
    if (k_major_only && (a_mn || b_mn)) return false;
    return !a_mn || b_mn || !wide() || (block_m == 128 && block_n <= 144);
  }
};
inline constexpr Shape kShapes[] = {
    {64, 32, 16},   //
    {64, 64, 12},   //
    {64, 96, 10},   //
    {128, 64, 8},   //
    {128, 96, 7},   //
    {128, 128, 7},  //
    {192, 96, 6},   //
    {128, 144, 6},  //
    {128, 192, 5},  //
    {192, 192, 4},  //
    // In steps of 8 columns: those that a tile has beyond its cut are multiplied, too.
    {128, 72, 8, true},   //
    {128, 80, 8, true},   //
    {128, 88, 8, true},   //
    {128, 104, 7, true},  //
    {128, 112, 7, true},  //
    {128, 120, 7, true},  //
    {128, 136, 6, true},  //
    {128, 152, 6, true},  //
    {128, 184, 5, true},  //
    {128, 200, 5, true},  //
    {128, 224, 5, true},  //
    {192, 104, 5, true},  //
    {192, 112, 5, true},  //
    {192, 136, 5, true},  //
    {192, 144, 5, true},  //
    {192, 152, 5, true},  //
    {192, 160, 5, true},  //
    {192, 200, 4, true},  //
    {256, 136, 4, true},  //
    {256, 144, 4, true},  //
    {256, 152, 4, true},  //
    {256, 160, 4, true},  //
    {256, 168, 4, true},  //
};

// The least that holds a tile, of those that both operands along K have or all operands. Tiles may
// be smaller than that where an operand lies along K, so that all are of one size: what takes time
// is what the SM with the largest takes in.
constexpr const Shape& shape_of(int tile_m, int tile_n, bool k_major) {
  const Shape* best = nullptr;
  for (const Shape& shape : kShapes) {
    if (shape.k_major_only && !k_major) continue;
    if (tile_m > shape.block_m || tile_n > shape.block_n) continue;
    if (best == nullptr || shape.block_m * shape.block_n < best->block_m * best->block_n) {
      best = &shape;
    }
  }
  return *best;
}

// CTAs of a cluster have neighbouring tiles and one operand in common: A, which is no smaller, but
// where their rows leave fewer of them without a tile. `cluster`: of kCluster CTAs, or 1.
struct Clusters {
  int along_m, along_n;
  XGEMM_HOST_DEVICE constexpr int size() const { return along_m * along_n; }
};
constexpr Clusters clusters_of(int64_t rows, int64_t columns, int cluster) {
  const int64_t by_columns = rows * round_up<int64_t>(columns, cluster);
  const int64_t by_rows = columns * round_up<int64_t>(rows, cluster);
  return by_rows < by_columns ? Clusters{cluster, 1} : Clusters{1, cluster};
}

struct Config {
  const Shape* shape;  // of kShapes
  int tile_m, tile_n;  // the part of it that a tile has
  Clusters clusters;
  Raster raster;
  int splits;    // of K, of a CTA each, whose sums a second launch adds; else 1
  int ctas;      // of the grid
  bool swapped;  // D^T = B^T A^T is computed, its rows the columns of D
};

inline constexpr int kMaxParts = 16;  // of K

// Warpgroups that multiply have 64 rows each; two share the k of a tile that has no more. Of a
// large tile there are two with twice 64 rows each, since four have not the registers for its sums.
constexpr int sharers_of(int block_m) { return block_m == 64 ? 2 : 1; }
constexpr int fragments_of(int block_m, int block_n) {
  return block_m == 256 && block_n > 136 ? 2 : 1;
}
constexpr int warpgroups_of(int block_m, int block_n) {
  return block_m / 64 * sharers_of(block_m) / fragments_of(block_m, block_n);
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
