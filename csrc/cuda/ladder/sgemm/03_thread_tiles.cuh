// Ladder sgemm, rung 3: 8 x 8 elements of C a thread, 16-byte loads.
//
// Source:    Simon Boehm, "How to Optimize a CUDA Matmul Kernel for
//            cuBLAS-like Performance", kernels 4 to 6.
// Changed:   a block makes 128 x 128 of C with 256 threads, 8 x 8 each, in steps of 8 k; A is
//            transposed on its way to shared memory; loads are of 16 bytes.
// Published: 18.2 TFLOP/s on an A6000 (cuBLAS 23.2).
//
// The outer product. A thread reads 8 elements of A and 8 of B, and makes 64 multiply-adds of them:
// a quarter of a load for each, where rung 2 had two. With 16-byte loads it is 4 instructions for
// 64 FMAs. The sums live in 64 registers over all of k.
//
// A 16-byte load needs 4 neighbours. B's rows have them; A's column does not, so A is stored
// transposed: a[k][row].
//
// What is wrong with it. The block loads, waits, multiplies, waits: while it loads nobody
// multiplies. And lanes read B from addresses that are 32 bytes apart. A 16-byte load goes 8 lanes
// at a time; 8 lanes at that stride span 256 bytes, so lanes i and i + 4 want the same banks: a
// 2-way conflict, every time.
#pragma once

#include "cuda/ladder/sgemm/copy4.cuh"

namespace xgemm::cuda::ladder::sgemm::rung3 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 8;
inline constexpr int kThreads = 256, kThreadTile = 8;  // 16 x 16 threads, 8 x 8 elements of C each

struct Tiles {
  alignas(16) float a[kBlockK][kBlockM];  // transposed: a thread's 8 rows lie side by side
  alignas(16) float b[kBlockK][kBlockN];
};

// What a thread carries from global to shared memory: 4 elements of a row of A, 4 of a row of B.
struct Carried {
  alignas(16) float a[4], b[4];

  __device__ void load(const Matrices& x, int tid, int k0) {
    const int row = static_cast<int>(blockIdx.y) * kBlockM + tid / 2;
    const int column = static_cast<int>(blockIdx.x) * kBlockN + tid % 32 * 4;
    copy4(a, x.a + int64_t{row} * x.k + k0 + tid % 2 * 4);
    copy4(b, x.b + int64_t{k0 + tid / 32} * x.n + column);
  }
  __device__ void store(Tiles& tiles, int tid) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) tiles.a[tid % 2 * 4 + i][tid / 2] = a[i];
    copy4(&tiles.b[tid / 32][tid % 32 * 4], b);
  }
};

// The elements that a thread multiplies in one step of k.
struct Fragments {
  alignas(16) float a[kThreadTile], b[kThreadTile];

  __device__ void load(const Tiles& tiles, int k, int row, int column) {
#pragma unroll
    for (int i = 0; i < kThreadTile; i += 4) {
      copy4(&a[i], &tiles.a[k][row + i]);
      copy4(&b[i], &tiles.b[k][column + i]);
    }
  }
};

using Sums = float[kThreadTile][kThreadTile];

__device__ inline void multiply(Sums& sums, const Fragments& x) {
#pragma unroll
  for (int i = 0; i < kThreadTile; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadTile; ++j) sums[i][j] += x.a[i] * x.b[j];
  }
}

__device__ inline void store(const Matrices& x, const Sums& sums, int row, int column) {
  float* c = x.c + int64_t{static_cast<int>(blockIdx.y) * kBlockM + row} * x.n;
  c += static_cast<int>(blockIdx.x) * kBlockN + column;
#pragma unroll
  for (int i = 0; i < kThreadTile; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadTile; j += 4) {
      alignas(16)
          const float four[4] = {sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]};
      copy4(c + int64_t{i} * x.n + j, four);
    }
  }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  XGEMM_STATIC_SHARED(Tiles, tiles);
  const int tid = static_cast<int>(threadIdx.x);
  const int row = tid / 16 * kThreadTile, column = tid % 16 * kThreadTile;
  Sums sums{};
  Carried carried;
  Fragments fragments;
  for (int k0 = 0; k0 < x.k; k0 += kBlockK) {
    carried.load(x, tid, k0);
    carried.store(tiles, tid);
    __syncthreads();  // the tiles are there
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      fragments.load(tiles, k, row, column);
      multiply(sums, fragments);
    }
    __syncthreads();  // and have been read
  }
  store(x, sums, row, column);
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kBlockN),
                    static_cast<unsigned>(product.m / kBlockM));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder sgemm: rung 3", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::sgemm::rung3
