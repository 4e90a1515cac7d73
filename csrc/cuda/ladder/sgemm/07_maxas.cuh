// Ladder sgemm, rung 7: FFMAs to and fro, and C through shared memory.
//
// Source:    Scott Gray, maxas: "SGEMM" (the wiki of his assembler for Maxwell).
// Changed:   every second row of a thread's tile is multiplied backwards; C is stored in
//            whole rows.
// Published: 98 % of the peak of a GM204, in assembly.
//
// An FFMA reads three registers. Next to each operand's port sits a small cache that keeps the last
// value it read (`.reuse` in the machine code): an operand that the next FFMA needs again costs no
// access to a register bank. Going to and fro through the tile, each FFMA shares A's or B's operand
// with the one before it, at the turns as well. maxas chooses registers and order by hand; here the
// order is a hint, and the compiler has the last word.
//
// C goes through shared memory, which is free by then, so that a warp stores whole rows of 256
// bytes. The blocks of 4 x 4 of rung 6 filled 128-byte lines as well, four rows at a time: on a GPU
// that writes in sectors of 32 bytes little is left to gain.
#pragma once

#include "cuda/ladder/sgemm/copy4.cuh"

namespace xgemm::cuda::ladder::sgemm::rung7 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 8;
inline constexpr int kWarpM = 64, kWarpN = 64, kThreads = 128;  // 2 x 2 warps
inline constexpr int kThreadM = 16, kThreadN = 8;  // of C, a thread: 4 x 2 blocks of 4 x 4
inline constexpr int kStepM = 16, kStepN = 32;     // from one of them to the next

struct Tiles {
  alignas(16) float a[kBlockK][kBlockM];  // transposed: 4 rows of a thread lie side by side
  alignas(16) float b[kBlockK][kBlockN];
};

// What a thread carries from global to shared memory: 2 x 4 elements of A, 2 x 4 of B.
struct Carried {
  alignas(16) float a[2][4], b[2][4];

  __device__ void load(const Matrices& x, int tid, int k0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = static_cast<int>(blockIdx.y) * kBlockM + half * 64 + tid / 2;
      const int column = static_cast<int>(blockIdx.x) * kBlockN + tid % 32 * 4;
      copy4(a[half], x.a + int64_t{row} * x.k + k0 + tid % 2 * 4);
      copy4(b[half], x.b + int64_t{k0 + half * 4 + tid / 32} * x.n + column);
    }
  }
  __device__ void store(Tiles& tiles, int tid) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tiles.a[tid % 2 * 4 + i][half * 64 + tid / 2] = a[half][i];
      copy4(&tiles.b[half * 4 + tid / 32][tid % 32 * 4], b[half]);
    }
  }
};

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
  Tiles tiles[2];
  alignas(16) Staging staging[kThreads / 32];
};

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  XGEMM_STATIC_SHARED(Shared, shared);
  Tiles(&tiles)[2] = shared.tiles;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32, lane = tid % 32;
  const int row = warp / 2 * kWarpM + lane / 8 * 4, column = warp % 2 * kWarpN + lane % 8 * 4;
  Sums sums{};
  Carried carried;
  Fragments fragments[2];
  carried.load(x, tid, 0);
  carried.store(tiles[0], tid);
  __syncthreads();
  fragments[0].load(tiles[0], 0, row, column);
  for (int k0 = 0; k0 < x.k; k0 += kBlockK) {
    const int stage = k0 / kBlockK % 2;
    const bool more = k0 + kBlockK < x.k;
    if (more) carried.load(x, tid, k0 + kBlockK);  // on its way while this tile is multiplied
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      if (k + 1 < kBlockK) {
        fragments[(k + 1) % 2].load(tiles[stage], k + 1, row, column);
      } else if (more) {
        carried.store(tiles[stage ^ 1], tid);
        __syncthreads();
        fragments[0].load(tiles[stage ^ 1], 0, row, column);
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
  return launch_grid("ladder sgemm: rung 7", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::sgemm::rung7
