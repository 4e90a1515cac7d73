// Ladder hgemm, rung 0: wmma, from global memory.
//
// Source:    LeetCUDA (xlite-dev), HGEMM in CUDA C++: the naive wmma kernel.
// Changed:   nothing yet: this is the first rung.
// Published: no time.
//
// A tensor core multiplies tiles, and a whole warp gives it one instruction: 16 x 16 x 16
// multiply-adds of fp16 with fp32 sums. wmma.load brings a tile of A and one of B into registers,
// in an order that only the hardware knows; wmma.mma multiplies; wmma.store puts the sums back in
// rows. A warp makes one 16 x 16 tile of C; a block has 8 warps, 2 down and 4 across.
//
// What is wrong with it. A tile of A of 512 bytes and one of B are loaded for each mma. The loads
// come from L1 or L2, 32 bytes of a row at a time, and the tensor core waits for each of them.
#pragma once

#include "cuda/ladder/hgemm/common.cuh"
#include "cuda/ptx/wmma.h"

namespace xgemm::cuda::ladder::hgemm::rung0 {

inline constexpr int kBlockM = 32, kBlockN = 64, kBlockK = 16;
inline constexpr int kThreads = 256, kWarps = kThreads / 32;

// A warp's 16 x 16 sums, which only wmma.store can put in order; then rounded to fp16.
using Staging = float[16][16];

__device__ inline void store_tile(const float (&sums)[8], Staging& staging, __half* c, int n,
                                  int lane) {
  ptx::wmma_store(&staging[0][0], sums, 16);
  __syncwarp();  // the tile is there
  const float* from = &staging[lane / 2][lane % 2 * 8];
  alignas(16) __half row[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) row[i] = __float2half_rn(from[i]);
  copy8(c + int64_t{lane / 2} * n + lane % 2 * 8, row);
  __syncwarp();  // and has been read
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  using Stagings = Staging[kWarps];
  XGEMM_STATIC_SHARED(Stagings, stagings);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.y) * kBlockM + warp / 4 * 16;
  const int column = static_cast<int>(blockIdx.x) * kBlockN + warp % 4 * 16;
  float sums[8] = {};
  for (int k = 0; k < x.k; k += kBlockK) {
    uint32_t a[8], b[8];
    ptx::wmma_load_a(a, x.a + int64_t{row} * x.k + k, x.k);
    ptx::wmma_load_b(b, x.b + int64_t{k} * x.n + column, x.n);
    ptx::wmma_mma(sums, a, b);
  }
  store_tile(sums, stagings[warp], x.c + int64_t{row} * x.n + column, x.n, lane);
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kBlockN),
                    static_cast<unsigned>(product.m / kBlockM));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder hgemm: rung 0", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::hgemm::rung0
