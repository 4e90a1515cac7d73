// Ladder sgemm, rung 2: tiles of A and B in shared memory.
//
// Source:    Simon Boehm, "How to Optimize a CUDA Matmul Kernel for
//            cuBLAS-like Performance", kernel 3.
// Changed:   the block copies 32 x 32 tiles of A and B to shared memory, and multiplies from there.
// Published: 2.98 TFLOP/s on an A6000 (cuBLAS 23.2).
//
// 32 x 32 threads need only 32 rows of A and 32 columns of B, each of which 32 of them share. So
// the block walks along k in steps of 32: every thread copies one element of A and one of B, the
// block waits, and each thread multiplies 32 pairs from shared memory. An element is read from
// global memory once a block instead of 32 times.
//
// The second __syncthreads is as necessary as the first: nobody may overwrite a tile that somebody
// still reads.
//
// What is wrong with it. There are still two loads for each multiply-add, only that they come from
// shared memory. An SM starts 128 FMAs a cycle but reads 32 words of shared memory: fewer
// loads are needed, not only closer ones.
#pragma once

#include "cuda/ladder/sgemm/copy4.cuh"

namespace xgemm::cuda::ladder::sgemm::rung2 {

inline constexpr int kTile = 32, kThreads = kTile * kTile;

struct Tiles {
  float a[kTile][kTile];  // [row][k]
  float b[kTile][kTile];  // [k][column]
};

__global__ void gemm_kernel(Matrices x) {
  XGEMM_STATIC_SHARED(Tiles, tiles);
  const int tid = static_cast<int>(threadIdx.x), down = tid / kTile, right = tid % kTile;
  const int row = static_cast<int>(blockIdx.y) * kTile + down;
  const int column = static_cast<int>(blockIdx.x) * kTile + right;
  float sum = 0.0f;
  for (int k0 = 0; k0 < x.k; k0 += kTile) {
    tiles.a[down][right] = x.a[int64_t{row} * x.k + k0 + right];
    tiles.b[down][right] = x.b[int64_t{k0 + down} * x.n + column];
    __syncthreads();  // the tiles are there
    for (int k = 0; k < kTile; ++k) sum += tiles.a[down][k] * tiles.b[k][right];
    __syncthreads();  // and have been read
  }
  x.c[int64_t{row} * x.n + column] = sum;
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kTile),
                    static_cast<unsigned>(product.m / kTile));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder sgemm: rung 2", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::sgemm::rung2
