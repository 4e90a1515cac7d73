// Ladder reduce, rung 3: the first addition while loading.
//
// Source:    Mark Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA), kernel 4.
// Changed:   a block adds 512 elements: each thread loads two and stores their sum.
// Published: 17.4 GB/s on a G80 (2^22 integers).
//
// The first step of the tree needs no shared memory: a thread adds its two elements in a register.
// Half as many blocks do the same work, and each thread has two loads of global memory under way
// instead of one, which hides more of their latency.
//
// What is wrong with it. The tree is eight more steps, and each ends in a barrier of the whole
// block, although from s = 32 on a single warp works.
#pragma once

#include "cuda/ladder/reduce/finish.cuh"

namespace xgemm::cuda::ladder::reduce::rung3 {

inline constexpr int kThreads = 256;
using Buffer = float[kThreads];
// Elements that a block adds: two a thread.
inline constexpr int kTile = 2 * kThreads;
__global__ void sum_kernel(const float* x, float* partials) {
  XGEMM_STATIC_SHARED(Buffer, shared);
  const unsigned tid = threadIdx.x;
  const int64_t first = int64_t{blockIdx.x} * kTile;
  shared[tid] = x[first + tid] + x[first + tid + kThreads];
  __syncthreads();

  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) shared[tid] += shared[tid + s];
    __syncthreads();
  }
  if (tid == 0) partials[blockIdx.x] = shared[0];
}

inline Status run(const Sum& sum) {
  const auto blocks = static_cast<unsigned>(sum.count / kTile);
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = sum.stream};
  const Status status = launch_grid("ladder reduce: rung 3", grid, sum_kernel, sum.x, sum.partials);
  return status.ok() ? finish(sum, static_cast<int>(blocks)) : status;
}

}  // namespace xgemm::cuda::ladder::reduce::rung3
