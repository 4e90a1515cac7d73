// Ladder reduce, rung 1: interleaved addressing, the first threads of the block work.
//
// Source:    Mark Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA), kernel 2.
// Changed:   thread tid takes the pair that begins at `index = 2 * s * tid`: no `%`, no divergence.
// Published: 4.9 GB/s on a G80 (2^22 integers).
//
// The same additions as on rung 0, given to other threads: the first 128 in step s = 1, the first
// 64 in step s = 2. Warps work as a whole or skip the step as a whole (below 32 threads one warp is
// divided, the others skip).
//
// What is wrong with it. Shared memory has 32 banks, and word i lies in bank i % 32. In step s the
// lanes of a warp read words that are 2 s apart. With s = 1 lanes 0 and 16 read words 0 and 32 of
// the same bank: a 2-way conflict, and the load takes two turns. With s = 2 it is 4-way; by s = 16
// all 32 words lie in one bank. Rung 0 had the same stride but fewer lanes at work.
#pragma once

#include "cuda/ladder/reduce/finish.cuh"

namespace xgemm::cuda::ladder::reduce::rung1 {

inline constexpr int kThreads = 256;
using Buffer = float[kThreads];
// Elements that a block adds: one a thread.
inline constexpr int kTile = kThreads;
__global__ void sum_kernel(const float* x, float* partials) {
  XGEMM_STATIC_SHARED(Buffer, shared);
  const unsigned tid = threadIdx.x;
  const int64_t first = int64_t{blockIdx.x} * kTile;
  shared[tid] = x[first + tid];
  __syncthreads();

  for (unsigned s = 1; s < blockDim.x; s *= 2) {
    const unsigned index = 2 * s * tid;
    if (index < blockDim.x) shared[index] += shared[index + s];
    __syncthreads();
  }
  if (tid == 0) partials[blockIdx.x] = shared[0];
}

inline Status run(const Sum& sum) {
  const auto blocks = static_cast<unsigned>(sum.count / kTile);
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = sum.stream};
  const Status status = launch_grid("ladder reduce: rung 1", grid, sum_kernel, sum.x, sum.partials);
  return status.ok() ? finish(sum, static_cast<int>(blocks)) : status;
}

}  // namespace xgemm::cuda::ladder::reduce::rung1
