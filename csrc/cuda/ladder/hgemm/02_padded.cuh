// Ladder hgemm, rung 2: rows padded by 16 bytes.
//
// Source:    LeetCUDA (xlite-dev), HGEMM in CUDA C++: the same with padded rows.
// Changed:   a row of a tile in shared memory is 16 bytes longer than its data.
// Published: no time.
//
// With rows of 80 and of 272 bytes, eight rows begin 20 and 68 words apart: modulo 32 banks that is
// 0, 20, 8, 28, 16, 4, 24, 12 for A and 0, 4, 8 ... 28 for B. Four banks from each of these cover
// all 32, so eight rows of 16 bytes are read in one turn.
//
// What is wrong with it. Padding costs memory (a quarter of A's tile), and no TMA copy and no wgmma
// operand may have it. And wmma hides its fragments: no sum can be touched in a register, and C has
// to go through shared memory.
#pragma once

#include "cuda/ladder/hgemm/common.cuh"
#include "cuda/ptx/wmma.h"

namespace xgemm::cuda::ladder::hgemm::rung2 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 32;
inline constexpr int kThreads = 256, kWarps = kThreads / 32;
inline constexpr int kWarpM = 64, kWarpN = 32;  // 2 x 4 warps

inline constexpr int kStrideA = kBlockK + 8,
                     kStrideB = kBlockN + 8;  // elements from row to row, 16 bytes of them unused

struct Tiles {
  alignas(128) __half a[kBlockM * kStrideA];  // [row][k]
  alignas(128) __half b[kBlockK * kStrideB];  // [k][column]
};

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

// Each thread copies two times 8 elements of A, and of B.
__device__ inline void load_tiles(const Matrices& x, Tiles& tiles, int tid, int k0) {
  const int row0 = static_cast<int>(blockIdx.y) * kBlockM;
  const int column0 = static_cast<int>(blockIdx.x) * kBlockN;
#pragma unroll
  for (int i = tid; i < kBlockM * kBlockK / 8; i += kThreads) {
    const int row = i / (kBlockK / 8), k = i % (kBlockK / 8) * 8;
    copy8(&tiles.a[row * kStrideA + k], x.a + int64_t{row0 + row} * x.k + k0 + k);
  }
#pragma unroll
  for (int i = tid; i < kBlockK * kBlockN / 8; i += kThreads) {
    const int k = i / (kBlockN / 8), column = i % (kBlockN / 8) * 8;
    copy8(&tiles.b[k * kStrideB + column], x.b + int64_t{k0 + k} * x.n + column0 + column);
  }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  using Stagings = Staging[kWarps];
  XGEMM_STATIC_SHARED(Stagings, stagings);
  XGEMM_STATIC_SHARED(Tiles, tiles);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  const int warp_row = warp / 4 * kWarpM, warp_column = warp % 4 * kWarpN;
  float sums[kWarpM / 16][kWarpN / 16][8] = {};
  for (int k0 = 0; k0 < x.k; k0 += kBlockK) {
    load_tiles(x, tiles, tid, k0);
    __syncthreads();  // the tiles are there
#pragma unroll
    for (int k = 0; k < kBlockK; k += 16) {
      uint32_t a[kWarpM / 16][8], b[kWarpN / 16][8];
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i) {
        ptx::wmma_load_a(a[i], &tiles.a[(warp_row + i * 16) * kStrideA + k], kStrideA);
      }
#pragma unroll
      for (int j = 0; j < kWarpN / 16; ++j) {
        ptx::wmma_load_b(b[j], &tiles.b[k * kStrideB + warp_column + j * 16], kStrideB);
      }
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < kWarpN / 16; ++j) ptx::wmma_mma(sums[i][j], a[i], b[j]);
      }
    }
    __syncthreads();  // and have been read
  }
  const int row = static_cast<int>(blockIdx.y) * kBlockM + warp_row;
  const int column = static_cast<int>(blockIdx.x) * kBlockN + warp_column;
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpN / 16; ++j) {
      __half* c = x.c + int64_t{row + i * 16} * x.n + column + j * 16;
      store_tile(sums[i][j], stagings[warp], c, x.n, tid % 32);
    }
  }
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kBlockN),
                    static_cast<unsigned>(product.m / kBlockM));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder hgemm: rung 2", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::hgemm::rung2
