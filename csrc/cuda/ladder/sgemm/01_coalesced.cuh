// Ladder sgemm, rung 1: lanes along columns.
//
// Source:    Simon Boehm, "How to Optimize a CUDA Matmul Kernel for
//            cuBLAS-like Performance", kernel 2.
// Changed:   thread tid takes column tid % 32 and row tid / 32: the two change places.
// Published: 1.99 TFLOP/s on an A6000 (cuBLAS 23.2); 3.17 on an H100 PCIe.
//
// The 32 lanes of a warp now hold 32 neighbouring elements of one row of C. In each step of k they
// read 32 neighbouring elements of a row of B, 128 bytes that are one request of four sectors
// ("coalesced"), and one element of A, which is broadcast. Nothing else changed: the same loads are
// dealt to other lanes.
//
// What is wrong with it. Each multiply-add needs two loads. A and B are read n and m times over
// from the caches, whose bandwidth, and the rate at which an SM issues loads, is now the limit.
#pragma once

#include "cuda/ladder/sgemm/copy4.cuh"

namespace xgemm::cuda::ladder::sgemm::rung1 {

inline constexpr int kTile = 32, kThreads = kTile * kTile;

__global__ void gemm_kernel(Matrices x) {
  const int tid = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y) * kTile + tid / kTile;
  const int column = static_cast<int>(blockIdx.x) * kTile + tid % kTile;
  const float* a = x.a + int64_t{row} * x.k;
  const float* b = x.b + column;
  float sum = 0.0f;
  for (int k = 0; k < x.k; ++k) sum += a[k] * b[int64_t{k} * x.n];
  x.c[int64_t{row} * x.n + column] = sum;
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kTile),
                    static_cast<unsigned>(product.m / kTile));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder sgemm: rung 1", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::sgemm::rung1
