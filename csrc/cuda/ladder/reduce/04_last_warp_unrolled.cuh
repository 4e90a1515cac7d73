// Ladder reduce, rung 4: the last warp's steps are unrolled.
//
// Source:    Mark Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA), kernel 5.
// Changed:   the loop ends at s = 64; the first warp adds the last 64 words without __syncthreads.
// Published: 31.3 GB/s on a G80 (2^22 integers).
//
// Six of the nine steps (s = 32 ... 1) no longer wait for eight warps, and the seven idle warps
// leave early. The published code counts on the lanes of a warp running in lockstep, through a
// volatile pointer and without any barrier. That has been wrong since Volta, whose lanes have
// program counters of their own: __syncwarp takes the place of that assumption, and costs little.
//
// All lanes take part in all six steps; what the upper ones add is never read.
//
// What is wrong with it. The loop that is left still computes s and compares it in each step.
#pragma once

#include "cuda/ladder/reduce/finish.cuh"

namespace xgemm::cuda::ladder::reduce::rung4 {

inline constexpr int kThreads = 256;
using Buffer = float[kThreads];
// Elements that a block adds: two a thread.
inline constexpr int kTile = 2 * kThreads;

// The sum of 64 words, by one warp. Lanes of a warp run in no fixed order (since Volta), so
// __syncwarp stands between what one lane writes and another reads, and between reads and writes.
__device__ inline void add_last_64(Buffer& shared, unsigned tid) {
  float sum = shared[tid];
#pragma unroll
  for (unsigned s = 32; s > 0; s /= 2) {
    sum += shared[tid + s];
    __syncwarp();
    shared[tid] = sum;
    __syncwarp();
  }
}

__global__ void sum_kernel(const float* x, float* partials) {
  XGEMM_STATIC_SHARED(Buffer, shared);
  const unsigned tid = threadIdx.x;
  const int64_t first = int64_t{blockIdx.x} * kTile;
  shared[tid] = x[first + tid] + x[first + tid + kThreads];
  __syncthreads();

  for (unsigned s = blockDim.x / 2; s > 32; s /= 2) {
    if (tid < s) shared[tid] += shared[tid + s];
    __syncthreads();
  }
  if (tid < 32) add_last_64(shared, tid);
  if (tid == 0) partials[blockIdx.x] = shared[0];
}

inline Status run(const Sum& sum) {
  const auto blocks = static_cast<unsigned>(sum.count / kTile);
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = sum.stream};
  const Status status = launch_grid("ladder reduce: rung 4", grid, sum_kernel, sum.x, sum.partials);
  return status.ok() ? finish(sum, static_cast<int>(blocks)) : status;
}

}  // namespace xgemm::cuda::ladder::reduce::rung4
