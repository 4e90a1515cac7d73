// Products on the FP64 tensor cores: fragments become float64 in registers.
#pragma once

#include "cuda/gemm/fp32/sm90/fragment.cuh"
#include "cuda/ptx/mma_f64.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

template <typename Tile, bool kAAlongK, bool kBAlongK>
struct WarpTileF64 : WarpFragments<Tile, kAAlongK, kBAlongK> {
  using Fragments = WarpFragments<Tile, kAAlongK, kBAlongK>;
  using Fragments::kBlocksM, Fragments::kBlocksN;

  double sums[kBlocksM / 2][kBlocksN][4] = {};

  using Fragments::Fragments;

  __device__ void start() {
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) wide_a_[i] = ptx::to_double(a_[0][0][i]);
#pragma unroll
    for (int j = 0; j < kBlocksN; ++j) wide_b_[0][j] = ptx::to_double(b_[0][0][j]);
  }

  // A step's products, and between them the next step's conversions: an element of A takes its
  // predecessor's registers once the products of its rows are under way.
  __device__ void multiply(int pair, int step) {
    const float (&next_a)[kBlocksM] = step == 0 ? a_[pair % 2][1] : a_[(pair + 1) % 2][0];
    const float (&next_b)[kBlocksN] = step == 0 ? b_[pair % 2][1] : b_[(pair + 1) % 2][0];
    constexpr int kRows = kBlocksM / 2, kPerRow = kBlocksN / kRows;  // of next_b
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
        ptx::mma_m16n8k4_f64(sums[i][j], wide_a_[2 * i], wide_a_[2 * i + 1], wide_b_[step][j]);
        if (j < kPerRow) {
          wide_b_[1 - step][i * kPerRow + j] = ptx::to_double(next_b[i * kPerRow + j]);
        }
        if (i > 0 && j >= kBlocksN - 2) {
          const int done = 2 * i - kBlocksN + j;
          wide_a_[done] = ptx::to_double(next_a[done]);
        }
      }
    }
    wide_a_[kBlocksM - 2] = ptx::to_double(next_a[kBlocksM - 2]);
    wide_a_[kBlocksM - 1] = ptx::to_double(next_a[kBlocksM - 1]);
  }

 private:
  using Fragments::a_, Fragments::b_;
  double wide_a_[kBlocksM], wide_b_[2][kBlocksN];
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
