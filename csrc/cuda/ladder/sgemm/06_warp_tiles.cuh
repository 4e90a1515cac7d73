// Ladder sgemm, rung 6: warp tiles of 64 x 64.
//
// Source:    Simon Boehm, "How to Optimize a CUDA Matmul Kernel for
//            cuBLAS-like Performance", kernel 10.
// Changed:   128 threads instead of 256; each warp makes 64 x 64 of C, its lanes lie 4 high and 8
//            wide, and a thread makes 16 x 8 elements: 4 x 2 blocks of 4 x 4.
// Published: 21.8 TFLOP/s on an A6000 (cuBLAS 23.2).
//
// A thread now makes 128 FMAs of 24 elements, where rung 5 made 64 of 16: 6 loads of 16 bytes for
// 128 FMAs instead of 8. A warp reads 64 + 64 elements in a step for 4096 FMAs; the 8 lanes of a
// phase share their rows of A, which are broadcast.
//
// The price is registers: 128 sums, two sets of 24 fragments and 16 on their way are close to the
// 255 that a thread may have. An SM holds 8 such warps. That is enough, as every warp has plenty of
// independent FMAs.
//
// What is wrong with it. An FMA reads three registers, and registers lie in banks, too: where two
// of the three are in the same bank the FMA takes an extra cycle.
#pragma once

#include "cuda/ladder/sgemm/copy4.cuh"

namespace xgemm::cuda::ladder::sgemm::rung6 {

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

__device__ inline void multiply(Sums& sums, const Fragments& x) {
#pragma unroll
  for (int i = 0; i < kThreadM; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadN; ++j) sums[i][j] += x.a[i] * x.b[j];
  }
}

__device__ inline void store(const Matrices& x, const Sums& sums, int row, int column) {
  float* c = x.c + int64_t{static_cast<int>(blockIdx.y) * kBlockM + row} * x.n;
  c += static_cast<int>(blockIdx.x) * kBlockN + column;
#pragma unroll
  for (int i = 0; i < kThreadM; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadN; j += 4) {
      alignas(16)
          const float four[4] = {sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]};
      copy4(c + int64_t{i / 4 * kStepM + i % 4} * x.n + j / 4 * kStepN, four);
    }
  }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  using Buffers = Tiles[2];
  XGEMM_STATIC_SHARED(Buffers, tiles);
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
  store(x, sums, row, column);
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kBlockN),
                    static_cast<unsigned>(product.m / kBlockM));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder sgemm: rung 6", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::sgemm::rung6
