// Ladder sgemm, rung 5: a thread's 8 x 8 elements are four quarters of 4 x 4, 64 apart.
//
// Source:    a Chinese series on GEMM optimisation ("GEMM optimisation"), measured on a V100.
// Changed:   a thread's rows are row .. row + 3 and 64 more; its columns likewise.
// Published: 96 % of cuBLAS on a V100.
//
// A 16-byte load goes 8 lanes at a time. With 4 elements a lane, 8 neighbouring lanes now read 128
// neighbouring bytes: all 32 banks, once each. The second load, 64 columns further on, does the
// same. The conflicts of B are gone, for the price of two other offsets.
//
// (A never had any: the lanes of a warp have two different rows only, and equal addresses are
// broadcast.)
//
// What is wrong with it. A warp's lanes lie 16 wide and 2 high: it reads 2 x 8 elements of A and 16
// x 8 of B in a step, though 4 x 8 lanes would need 32 + 64 for the same work.
#pragma once

#include "cuda/ladder/sgemm/copy4.cuh"

namespace xgemm::cuda::ladder::sgemm::rung5 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 8;
inline constexpr int kThreads = 256, kThreadTile = 8;  // 16 x 16 threads, four 4 x 4 of C each

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

// The elements that a thread multiplies in one step of k: two times four, 64 apart.
struct Fragments {
  alignas(16) float a[kThreadTile], b[kThreadTile];

  __device__ void load(const Tiles& tiles, int k, int row, int column) {
#pragma unroll
    for (int i = 0; i < kThreadTile; i += 4) {
      copy4(&a[i], &tiles.a[k][row + i / 4 * 64]);
      copy4(&b[i], &tiles.b[k][column + i / 4 * 64]);
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
      copy4(c + int64_t{i / 4 * 64 + i % 4} * x.n + j / 4 * 64, four);
    }
  }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  using Buffers = Tiles[2];
  XGEMM_STATIC_SHARED(Buffers, tiles);
  const int tid = static_cast<int>(threadIdx.x);
  const int row = tid / 16 * 4, column = tid % 16 * 4;
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
  return launch_grid("ladder sgemm: rung 5", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::sgemm::rung5
