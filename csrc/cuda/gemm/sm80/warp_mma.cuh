// A warp's part of the tile: fragments by ldmatrix, products by mma.sync.
#pragma once

#include <cstdint>

#include "cuda/gemm/sm80/tile.cuh"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mma_sm80.h"

namespace xgemm::cuda::gemm::sm80 {

// Reads the fragments of 16 rows and 16 k of an operand's tile: the four registers of mma's A, or
// (kIsB) the two of its B for the first 8 rows, then for the others.
template <typename Layout, bool kIsB>
class FragmentReader {
 public:
  // `tile`: shared-memory address of the operand in stage 0. The warp's rows start at `row`.
  __device__ FragmentReader(uint32_t tile, int row, int lane) {
    // Which of the 16 rows' halves, and which of the 16 k's, this lane's matrix is.
    const int row_half = kIsB ? lane / 16 : lane / 8 % 2, k_half = kIsB ? lane / 8 % 2 : lane / 16;
    if constexpr (Layout::kMnMajor) {
      base_ = tile + Layout::offset(k_half * 8 + lane % 8, row / 8 + row_half);
    } else {
      base_ = tile + Layout::offset(row + row_half * 8 + lane % 8, k_half);
    }
  }

  __device__ void load(uint32_t (&fragment)[4], uint32_t stage_offset, int row16, int k16) const {
    // The swizzle is a XOR within aligned groups of chunks, so another chunk is another XOR.
    if constexpr (Layout::kMnMajor) {
      ptx::ldmatrix_x4_trans(fragment,
                             (base_ ^ row16 * 32) + k16 * 16 * Layout::kLineBytes + stage_offset);
    } else {
      ptx::ldmatrix_x4(fragment,
                       (base_ ^ k16 * 32) + row16 * 16 * Layout::kLineBytes + stage_offset);
    }
  }

 private:
  uint32_t base_;
};

// A warp's part of the tile: accumulators, and two sets of fragments, so that the tensor cores work
// on one while the other is read.
template <typename T, typename Tile, typename LayoutA, typename LayoutB>
class WarpMma {
 public:
  static constexpr int kTilesM = Tile::kWarpM / 16, kTilesN = Tile::kWarpN / 8;
  static constexpr int kProducts = kTilesM * kTilesN;  // of 16 k
  float acc[kTilesM][kTilesN][4] = {};

  __device__ WarpMma(uint32_t a, uint32_t b, int warp, int lane)
      : a_reader_(a, warp / Tile::kWarpsN * Tile::kWarpM, lane),
        b_reader_(b, warp % Tile::kWarpsN * Tile::kWarpN, lane) {}

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
        for (float& x : acc[i][j]) x = 0.0f;
      }
    }
  }

  __device__ void load(int set, uint32_t stage_offset, int k16) {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) a_reader_.load(a_[set][i], stage_offset, i, k16);
#pragma unroll
    for (int j = 0; j < kTilesN / 2; ++j) b_reader_.load(b_[set][j], stage_offset, j, k16);
  }

  // `behind(i)` is called behind product i. B's fragment is the one that stays from a product to
  // the next, and of A's the last one of a column.
  template <typename Behind>
  __device__ void multiply(int set, Behind behind) {
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      const int j = product / kTilesM, down = product % kTilesM;
      const int i = j % 2 == 0 ? down : kTilesM - 1 - down;
      const uint32_t (&b)[4] = b_[set][j / 2];
      ptx::mma_m16n8k16<T>(acc[i][j], a_[set][i], b[j % 2 * 2], b[j % 2 * 2 + 1]);
      behind(product);
    }
  }

 private:
  FragmentReader<LayoutA, false> a_reader_;
  FragmentReader<LayoutB, true> b_reader_;
  uint32_t a_[2][kTilesM][4], b_[2][kTilesN / 2][4];
};

}  // namespace xgemm::cuda::gemm::sm80
