// The sizes that the choice of a tile, the launch and the sm_90a kernel must agree on.
#pragma once

#include <cstdint>

#include "common/math.h"
#include "cuda/gemm/sm90/operand.h"

namespace xgemm::cuda::gemm::sm90::persistent {

inline constexpr int kConsumers = 2;  // warpgroups, of 64 rows of a tile each
inline constexpr int kBlockM = 64 * kConsumers;
inline constexpr int kPair = 2;  // CTAs of a cluster, where there are clusters

// The workspace of CTAs that complete each other's sums: a flag for each consumer warpgroup, then
// its sums of a tile.
struct StreamKWorkspace {
  int64_t flag_bytes, partial_bytes;
  constexpr int64_t bytes() const { return flag_bytes + partial_bytes; }
};
constexpr StreamKWorkspace stream_k_workspace(int block_n, int ctas) {
  return {round_up<int64_t>(int64_t{ctas} * kConsumers * 8, 256),
          int64_t{ctas} * kBlockM * block_n * 4};
}

// Of `tiles`, those that clusters share out evenly: what a whole number of waves leaves, and one
// wave more, so that a share is about a tile's K or more.
constexpr int64_t shared_tiles_of(int64_t tiles, int64_t clusters) {
  return tiles <= clusters ? tiles : clusters + tiles % clusters;
}

// Tiles of kBlockM rows, and how clusters share them out.
struct Config {
  int block_n, stages;
  int cluster;    // CTAs
  int splits;     // of the K of the last wave's tiles, by the CTAs of a cluster; else these share B
  int ctas;       // of the grid
  bool stream_k;  // clusters take equal shares of K over several tiles
  bool shifted;   // A is read without a copy, though it is not aligned (shifted.h)
  bool swapped;   // D^T = B^T A^T is computed, its rows the columns of D
  bool tma_store;  // else D is written element by element
};

}  // namespace xgemm::cuda::gemm::sm90::persistent

// The tiles that the kernel is compiled for: columns of D, stages of the pipeline. Its rows are
// always 128.
//
// One that is not a multiple of 64 wide takes a K-major B only.
#define XGEMM_SM90_TILES(TILE) \
  TILE(256, 4)                 \
  TILE(240, 4)                 \
  TILE(224, 4)                 \
  TILE(208, 4)                 \
  TILE(192, 5)                 \
  TILE(176, 5)                 \
  TILE(160, 5)                 \
  TILE(144, 6)                 \
  TILE(128, 6)
