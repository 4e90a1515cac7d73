// Ladder sgemm, rung 8: cp.async.
//
// Source:    ours: what the product's fp32 kernel for Ampere does, with everything else left out.
// Changed:   tiles are copied by cp.async into a ring of four, without passing through registers.
// Published: nothing.
//
// cp.async (Ampere and later) copies from global to shared memory while the thread goes on. The 16
// registers that carried the next tile are free, and not one tile but three are on their way: the
// latency of memory is covered three times over. Copies are counted in groups, one a tile; the wait
// lets the latest two be unfinished.
//
// B is copied 16 bytes at a time. A must be transposed, and a copy that does so moves one element:
// 4 bytes. A warp copies 4 rows of 8 k at a time, which are 4 sectors of 32 bytes; rows of A's tile
// are 4 words longer than its data, so that these 32 elements lie in 32 banks.
#pragma once

#include "cuda/ladder/sgemm/copy4.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/mbarrier.h"

namespace xgemm::cuda::ladder::sgemm::rung8 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 8;
inline constexpr int kWarpM = 64, kWarpN = 64, kThreads = 128;  // 2 x 2 warps
inline constexpr int kThreadM = 16, kThreadN = 8;  // of C, a thread: 4 x 2 blocks of 4 x 4
inline constexpr int kStepM = 16, kStepN = 32;     // from one of them to the next
inline constexpr int kStages = 4;

struct Tiles {
  alignas(16) float a[kBlockK][kBlockM + 4];  // transposed: 4 rows of a thread lie side by side
  alignas(16) float b[kBlockK][kBlockN];
};

// One group of copies: a thread copies eight single elements of A, and two times four of B.
__device__ inline void copy_tile(const Matrices& x, Tiles& tiles, int tid, int k0) {
  const int first = static_cast<int>(blockIdx.y) * kBlockM;
#pragma unroll
  for (int row = tid / kBlockK; row < kBlockM; row += kThreads / kBlockK) {
    const float* a = x.a + int64_t{first + row} * x.k + k0 + tid % kBlockK;
    ptx::cp_async<4>(ptx::smem_address(&tiles.a[tid % kBlockK][row]), a, 4);
  }
  const int column = static_cast<int>(blockIdx.x) * kBlockN + tid % 32 * 4;
#pragma unroll
  for (int k = tid / 32; k < kBlockK; k += 4) {
    const float* b = x.b + int64_t{k0 + k} * x.n + column;
    ptx::cp_async<16>(ptx::smem_address(&tiles.b[k][tid % 32 * 4]), b, 16);
  }
}

// The elements that a thread multiplies in one step of k.
struct Fragments {
  alignas(16) float a[kThreadM], b[kThreadN];

  __device__ void load(const Tiles& tiles, int k, int row, int column) {
#pragma unroll
    for (int i = 0; i < kThreadM; i += 4) copy4(&a[i], &tiles.a[k][row + i / 4 * kStepM]);
#pragma unroll
    for (int j = 0; j < kThreadN; j += 4) copy4(&b[j], &tiles.b[k][column + j / 4 * kStepN]);
  }
};

using Sums = float[kThreadM][kThreadN];

// To and fro: each FMA shares an operand with the one before it.
__device__ inline void multiply(Sums& sums, const Fragments& x) {
#pragma unroll
  for (int i = 0; i < kThreadM; ++i) {
#pragma unroll
    for (int step = 0; step < kThreadN; ++step) {
      const int j = i % 2 == 0 ? step : kThreadN - 1 - step;
      sums[i][j] += x.a[i] * x.b[j];
    }
  }
}

// 16 rows of a warp's 64 columns at a time: blocks of 4 x 4 in, whole rows out.
using Staging = float[kStepM][kWarpN];

__device__ inline void store(const Matrices& x, const Sums& sums, Staging& staging, int warp,
                             int lane) {
  float* c = x.c + int64_t{static_cast<int>(blockIdx.y) * kBlockM + warp / 2 * kWarpM} * x.n;
  c += static_cast<int>(blockIdx.x) * kBlockN + warp % 2 * kWarpN;
#pragma unroll
  for (int i = 0; i < kThreadM; i += 4) {
#pragma unroll
    for (int row = 0; row < 4; ++row) {
#pragma unroll
      for (int j = 0; j < kThreadN; j += 4) {
        const float* s = &sums[i + row][j];
        alignas(16) const float four[4] = {s[0], s[1], s[2], s[3]};
        copy4(&staging[lane / 8 * 4 + row][lane % 8 * 4 + j / 4 * kStepN], four);
      }
    }
    __syncwarp();  // the rows are there
#pragma unroll
    for (int row = lane / 16; row < kStepM; row += 2) {
      copy4(c + int64_t{i / 4 * kStepM + row} * x.n + lane % 16 * 4, &staging[row][lane % 16 * 4]);
    }
    __syncwarp();  // and have been read
  }
}

union Shared {
  Tiles tiles[kStages];
  alignas(16) Staging staging[kThreads / 32];
};

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  XGEMM_STATIC_SHARED(Shared, shared);
  Tiles(&tiles)[kStages] = shared.tiles;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32, lane = tid % 32;
  const int row = warp / 2 * kWarpM + lane / 8 * 4, column = warp % 2 * kWarpN + lane % 8 * 4;
  Sums sums{};
  Fragments fragments[2];
  const int count = x.k / kBlockK;
  for (int tile = 0; tile < kStages - 1; ++tile) {
    if (tile < count) copy_tile(x, tiles[tile], tid, tile * kBlockK);
    ptx::cp_async_commit_group();
  }
  ptx::cp_async_wait_group<kStages - 2>();
  __syncthreads();
  fragments[0].load(tiles[0], 0, row, column);
  for (int tile = 0; tile < count; ++tile) {
    // The tile before this one has been read by all: its place in the ring is free.
    const int later = tile + kStages - 1;
    if (later < count) copy_tile(x, tiles[later % kStages], tid, later * kBlockK);
    ptx::cp_async_commit_group();
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      if (k + 1 < kBlockK) {
        fragments[(k + 1) % 2].load(tiles[tile % kStages], k + 1, row, column);
      } else if (tile + 1 < count) {
        ptx::cp_async_wait_group<kStages - 2>();
        __syncthreads();
        fragments[0].load(tiles[(tile + 1) % kStages], 0, row, column);
      }
      multiply(sums, fragments[k % 2]);
    }
  }
  __syncthreads();  // the last tile has been read
  store(x, sums, shared.staging[warp], warp, lane);
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kBlockN),
                    static_cast<unsigned>(product.m / kBlockM));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder sgemm: rung 8", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::sgemm::rung8
