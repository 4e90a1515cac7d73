// Products on the TF32 tensor cores by mma.sync, which takes both operands from registers, so that
// they may lie in any order: wgmma, which is faster, wants one along k.
#pragma once

#include "cuda/gemm/fp32/sm90/fragment.cuh"
#include "cuda/gemm/tf32/split.cuh"
#include "cuda/ptx/mma_tf32.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

template <typename Tile, bool kAAlongK, bool kBAlongK>
struct WarpTileTf32 : WarpFragments<Tile, kAAlongK, kBAlongK> {
  using Fragments = WarpFragments<Tile, kAAlongK, kBAlongK>;
  using Fragments::kBlocksM, Fragments::kBlocksN;

  float sums[kBlocksM / 2][kBlocksN][4] = {};

  using Fragments::Fragments;

  __device__ void start() {}

  // Half of the products of a pair of steps, whose eight k are those of one instruction: its k t
  // and t + 4 are the pair's 2 t and 2 t + 1.
  __device__ void multiply(int pair, int half) {
    float (&a)[2][kBlocksM] = a_[pair % 2];
    float (&b)[2][kBlocksN] = b_[pair % 2];
    if (!Tile::kTma && half == 0) {  // TMA rounds by itself
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (float& x : a[step]) x = tf32::round_or_nan(x);
#pragma unroll
        for (float& x : b[step]) x = tf32::round_or_nan(x);
      }
    }
    constexpr int kRows = kBlocksM / 4;  // of 16, of half of the warp's
#pragma unroll
    for (int i = half * kRows; i < (half + 1) * kRows; ++i) {
      const float rows[4] = {a[0][2 * i], a[0][2 * i + 1], a[1][2 * i], a[1][2 * i + 1]};
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
        ptx::mma_m16n8k8_tf32(sums[i][j], rows, b[0][j], b[1][j]);
      }
    }
  }

 private:
  using Fragments::a_, Fragments::b_;
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
