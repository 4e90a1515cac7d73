// The sizes that the choice of a tile, the launch and the sm_90a kernel must agree on.
#pragma once

#include "cuda/gemm/sm90/operand.h"

namespace xgemm::cuda::gemm::sm90::persistent {

inline constexpr int kConsumers = 2;  // warpgroups, of 64 rows of a tile each
inline constexpr int kBlockM = 64 * kConsumers;
inline constexpr int kPair = 2;  // CTAs of a cluster, where there are clusters

// Tiles of kBlockM rows, and how clusters share them out.
struct Config {
  int block_n, stages;
  int cluster;   // CTAs
  int splits;    // of the K of the last wave's tiles, by the CTAs of a cluster; else these share B
  int ctas;      // of the grid
  bool shifted;  // A is read without a copy, though it is not aligned (shifted.h)
  bool swapped;  // D^T = B^T A^T is computed, its rows the columns of D
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
  TILE(128, 6)
