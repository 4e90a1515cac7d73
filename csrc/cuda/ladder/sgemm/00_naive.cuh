// Ladder sgemm, rung 0: one element of C a thread, lanes along rows.
//
// Source:    Simon Boehm, "How to Optimize a CUDA Matmul Kernel for
//            cuBLAS-like Performance", kernel 1.
// Changed:   nothing yet: this is the first rung.
// Published: 0.31 TFLOP/s on an A6000 (cuBLAS 23.2); 0.243 on an H100 PCIe.
//
// Each thread computes one element of C: the inner product of a row of A and a column of B. A block
// is 32 x 32 threads, and thread tid takes row tid % 32: the 32 lanes of a warp hold one column of
// C and 32 different rows.
//
// What is wrong with it. In each step of k the lanes read A[row][k] of 32 rows: 32 addresses that
// are k floats apart, each in a sector of its own. The hardware moves 32 bytes for each 4 that are
// used, 32 sectors a warp where 4 would do. The store of C is scattered in the same way. B costs
// nothing: all lanes read the same element, which is broadcast.
#pragma once

#include "cuda/ladder/sgemm/copy4.cuh"

namespace xgemm::cuda::ladder::sgemm::rung0 {

inline constexpr int kTile = 32, kThreads = kTile * kTile;

__global__ void gemm_kernel(Matrices x) {
  const int tid = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) * kTile + tid % kTile;
  const int column = static_cast<int>(blockIdx.y) * kTile + tid / kTile;
  const float* a = x.a + int64_t{row} * x.k;
  const float* b = x.b + column;
  float sum = 0.0f;
  for (int k = 0; k < x.k; ++k) sum += a[k] * b[int64_t{k} * x.n];
  x.c[int64_t{row} * x.n + column] = sum;
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.m / kTile),
                    static_cast<unsigned>(product.n / kTile));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder sgemm: rung 0", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::sgemm::rung0
