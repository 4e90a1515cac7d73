// Ladder hgemm, rung 7: a tile of 128 x 256, double-buffered fragments, a grouped order.
//
// Source:    ours: what the product's kernel for Ampere does (csrc/cuda/gemm/sm80), step by step.
// Changed:   a warp makes 64 x 64 of C; it loads the fragments of the next 16 k before it
//            multiplies those of the last; blocks that run together lie in groups of 8 rows of
//            tiles.
// Published: nothing.
//
// A warp tile of 64 x 64 reads 4 KB of shared memory for 65,536 multiply-adds: a third less for
// each than 64 x 32. Its 128 sums and two sets of fragments fill the registers of one block an SM.
// With 8 warps only, latency is covered by order: the ldmatrix of step k + 1 are issued before the
// mma of step k, over the edge of the tile, too. x4.trans loads two tiles of B at once.
//
// Blocks are numbered so that those which run at the same time make a square of C, not a strip:
// they read fewer different rows of A and columns of B, and more of what they read is in L2.
#pragma once

#include "cuda/ladder/hgemm/common.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::ladder::hgemm::rung7 {

inline constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 32;
inline constexpr int kThreads = 256;
inline constexpr int kWarpM = 64, kWarpN = 64;  // 2 x 4 warps
inline constexpr int kStages = 4, kGroup = 8;

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

struct Place {
  int row, column;
};

// The block's tile: down a group of rows of tiles first, then to the next column of tiles.
__device__ inline Place place_of(const Matrices& x) {
  const int index = static_cast<int>(blockIdx.x), rows = x.m / kBlockM, columns = x.n / kBlockN;
  const int first = index / (kGroup * columns) * kGroup;
  const int height = min(rows - first, kGroup), within = index - first * columns;
  return {(first + within % height) * kBlockM, within / height * kBlockN};
}

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

// What a warp multiplies in 16 k.
struct Fragments {
  uint32_t a[kWarpM / 16][4], b[kWarpN / 16][4];

  __device__ void load(const Tiles& tiles, int k, int row, int column, int lane) {
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) {
      const int offset = offset_a(row + i * 16 + lane % 16, k + lane / 16 * 8);
      ptx::ldmatrix_x4(a[i], ptx::smem_address(&tiles.a[offset]));
    }
#pragma unroll
    for (int j = 0; j < kWarpN / 16; ++j) {
      const int offset = offset_b(k + lane % 16, column + j * 16 + lane / 16 * 8);
      ptx::ldmatrix_x4_trans(b[j], ptx::smem_address(&tiles.b[offset]));
    }
  }
};

using Sums = float[kWarpM / 16][kWarpN / 8][4];

__device__ inline void multiply(Sums& sums, const Fragments& x) {
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpN / 8; ++j) {
      ptx::mma_m16n8k16<__half>(sums[i][j], x.a[i], x.b[j / 2][j % 2 * 2],
                                x.b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

// The four sums of a lane: columns 2 (lane % 4) and + 1 of rows lane / 4 and lane / 4 + 8.
__device__ inline void store_tile(const float (&sums)[4], __half* c, int n, int lane) {
  c += int64_t{lane / 4} * n + lane % 4 * 2;
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
  const auto [row, column] = place_of(x);
  Sums sums = {};
  Fragments fragments[2];
  const int count = x.k / kBlockK;
  for (int tile = 0; tile < kStages - 1; ++tile) {
    if (tile < count) copy_tiles(x, tiles[tile], tid, row, column, tile * kBlockK);
    ptx::cp_async_commit_group();
  }
  ptx::cp_async_wait_group<kStages - 2>();
  __syncthreads();
  fragments[0].load(tiles[0], 0, warp_row, warp_column, lane);
  for (int tile = 0; tile < count; ++tile) {
    const int later = tile + kStages - 1;
    if (later < count) copy_tiles(x, tiles[later % kStages], tid, row, column, later * kBlockK);
    ptx::cp_async_commit_group();
    fragments[1].load(tiles[tile % kStages], 16, warp_row, warp_column, lane);
    multiply(sums, fragments[0]);
    if (tile + 1 < count) {
      ptx::cp_async_wait_group<kStages - 2>();
      __syncthreads();  // the next tile is there, and all of this one is in registers
      fragments[0].load(tiles[(tile + 1) % kStages], 0, warp_row, warp_column, lane);
    }
    multiply(sums, fragments[1]);
  }
  store(x, sums, row + warp_row, column + warp_column, lane);
}

inline Status run(const Product& product) {
  static SharedMemoryLimit limit;
  const auto kernel = gemm_kernel;
  const cudaError_t raised = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes);
  if (raised != cudaSuccess) return {raised, "ladder hgemm: raising the limit of shared memory"};
  const Grid grid{
      .blocks = dim3(static_cast<unsigned>(product.m / kBlockM * (product.n / kBlockN))),
      .threads = kThreads,
      .shared_bytes = kSmemBytes,
      .stream = product.stream};
  return launch_grid("ladder hgemm: rung 7", grid, kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::hgemm::rung7
