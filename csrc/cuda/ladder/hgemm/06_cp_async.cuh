// Ladder hgemm, rung 6: a pipeline of four tiles, filled by cp.async.
//
// Source:    ours: what the product's kernel for Ampere does (csrc/cuda/gemm/sm80), step by step.
// Changed:   tiles are copied by cp.async, three of them ahead; one __syncthreads a tile.
// Published: nothing.
//
// While tile t is multiplied, the copies of t + 1, t + 2 and t + 3 are under way. Each thread
// counts its copies in groups, one a tile, and waits until all but the latest two have landed;
// __syncthreads then makes it true for everybody's. The same barrier says that tile t - 1 has been
// read, whose place the copies of t + 3 take.
//
// What is wrong with it. Between the barrier and the first mma a warp waits for its ldmatrix, in
// every tile. And a warp tile of 64 x 32 reads 3 KB of shared memory for 32,768 multiply-adds; a
// larger one needs fewer bytes for each.
#pragma once

#include "cuda/ladder/hgemm/common.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::hgemm::rung6 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 32;
inline constexpr int kThreads = 256;
inline constexpr int kWarpM = 64, kWarpN = 32;  // 2 x 4 warps
inline constexpr int kStages = 4;

// Where an element lies in its tile: the row's number, XORed into that of its 16 bytes.
__device__ constexpr int offset_a(int row, int k) {
  return row * kBlockK + (k ^ (row / 2 % 4 * 8));
}
__device__ constexpr int offset_b(int k, int column) {
  return k * kBlockN + (column ^ (k % 8 * 8));
}

struct Tiles {
  alignas(128) __half a[kBlockM * kBlockK];
  alignas(128) __half b[kBlockK * kBlockN];
};

inline constexpr int kSmemBytes = kStages * sizeof(Tiles);

// One group of copies: each thread copies 16 bytes at a time of A, and of B.
__device__ inline void copy_tiles(const Matrices& x, Tiles& tiles, int tid, int row0, int column0,
                                  int k0) {
#pragma unroll
  for (int i = tid; i < kBlockM * kBlockK / 8; i += kThreads) {
    const int row = i / (kBlockK / 8), k = i % (kBlockK / 8) * 8;
    ptx::cp_async<16>(ptx::smem_address(&tiles.a[offset_a(row, k)]),
                      x.a + int64_t{row0 + row} * x.k + k0 + k, 16);
  }
#pragma unroll
  for (int i = tid; i < kBlockK * kBlockN / 8; i += kThreads) {
    const int k = i / (kBlockN / 8), column = i % (kBlockN / 8) * 8;
    ptx::cp_async<16>(ptx::smem_address(&tiles.b[offset_b(k, column)]),
                      x.b + int64_t{k0 + k} * x.n + column0 + column, 16);
  }
}

using Sums = float[kWarpM / 16][kWarpN / 8][4];

// The products of 16 k.
__device__ inline void multiply(Sums& sums, const Tiles& tiles, int k, int row, int column,
                                int lane) {
  uint32_t a[kWarpM / 16][4], b[kWarpN / 8][2];
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
    const int offset = offset_a(row + i * 16 + lane % 16, k + lane / 16 * 8);
    ptx::ldmatrix_x4(a[i], ptx::smem_address(&tiles.a[offset]));
  }
#pragma unroll
  for (int j = 0; j < kWarpN / 8; ++j) {
    const int offset = offset_b(k + lane % 16, column + j * 8);
    ptx::ldmatrix_x2_trans(b[j], ptx::smem_address(&tiles.b[offset]));
  }
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpN / 8; ++j) {
      ptx::mma_m16n8k16<__half>(sums[i][j], a[i], b[j][0], b[j][1]);
    }
  }
}

// The four sums of a lane: columns 2 (lane % 4) and + 1 of rows lane / 4 and lane / 4 + 8.
__device__ inline void store_tile(const float (&sums)[4], __half* c, int n, int lane) {
  const auto [row, column] = layout::fragment_place(16, 8, lane, 0);
  c += int64_t{row} * n + column;
  *reinterpret_cast<__half2*>(c) = __floats2half2_rn(sums[0], sums[1]);
  *reinterpret_cast<__half2*>(c + int64_t{8} * n) = __floats2half2_rn(sums[2], sums[3]);
}

__device__ inline void store(const Matrices& x, const Sums& sums, int row, int column, int lane) {
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpN / 8; ++j) {
      store_tile(sums[i][j], x.c + int64_t{row + i * 16} * x.n + column + j * 8, x.n, lane);
    }
  }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  XGEMM_DYNAMIC_SHARED(Tiles, tiles, 128);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int warp_row = warp / 4 * kWarpM, warp_column = warp % 4 * kWarpN;
  const int row = static_cast<int>(blockIdx.y) * kBlockM;
  const int column = static_cast<int>(blockIdx.x) * kBlockN;
  Sums sums = {};
  const int count = x.k / kBlockK;
  for (int tile = 0; tile < kStages - 1; ++tile) {
    if (tile < count) copy_tiles(x, tiles[tile], tid, row, column, tile * kBlockK);
    ptx::cp_async_commit_group();
  }
  for (int tile = 0; tile < count; ++tile) {
    ptx::cp_async_wait_group<kStages - 2>();
    __syncthreads();  // the tile is there, and the one before it has been read
    const int later = tile + kStages - 1;
    if (later < count) copy_tiles(x, tiles[later % kStages], tid, row, column, later * kBlockK);
    ptx::cp_async_commit_group();
#pragma unroll
    for (int k = 0; k < kBlockK; k += 16) {
      multiply(sums, tiles[tile % kStages], k, warp_row, warp_column, lane);
    }
  }
  store(x, sums, row + warp_row, column + warp_column, lane);
}

inline Status run(const Product& product) {
  static SharedMemoryLimit limit;
  const auto kernel = gemm_kernel;
  const cudaError_t raised = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes);
  if (raised != cudaSuccess) return {raised, "ladder hgemm: raising the limit of shared memory"};
  const Grid grid{.blocks = dim3(static_cast<unsigned>(product.n / kBlockN),
                                 static_cast<unsigned>(product.m / kBlockM)),
                  .threads = kThreads,
                  .shared_bytes = kSmemBytes,
                  .stream = product.stream};
  return launch_grid("ladder hgemm: rung 6", grid, kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::hgemm::rung6
