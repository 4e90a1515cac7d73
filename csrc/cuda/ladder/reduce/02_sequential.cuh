// Ladder reduce, rung 2: sequential addressing.
//
// Source:    Mark Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA), kernel 3.
// Changed:   s begins at half the block and halves; thread tid adds word tid + s to word tid.
// Published: 9.7 GB/s on a G80 (2^22 integers).
//
// Neighbouring lanes now read neighbouring words: 32 words of 32 banks, one turn, in every step.
//
//   s = 128  thread 0 adds 128, thread 1 adds 129 ...
//   s = 1    thread 0 adds 1
//
// What is wrong with it. Half of the threads load one element, store it to shared memory, and are
// idle from the first step on.
#pragma once

#include "cuda/ladder/reduce/finish.cuh"

namespace xgemm::cuda::ladder::reduce::rung2 {

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

  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) shared[tid] += shared[tid + s];
    __syncthreads();
  }
  if (tid == 0) partials[blockIdx.x] = shared[0];
}

inline Status run(const Sum& sum) {
  const auto blocks = static_cast<unsigned>(sum.count / kTile);
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = sum.stream};
  const Status status = launch_grid("ladder reduce: rung 2", grid, sum_kernel, sum.x, sum.partials);
  return status.ok() ? finish(sum, static_cast<int>(blocks)) : status;
}

}  // namespace xgemm::cuda::ladder::reduce::rung2
