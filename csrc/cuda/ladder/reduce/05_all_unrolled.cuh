// Ladder reduce, rung 5: all steps are unrolled.
//
// Source:    Mark Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA), kernel 6.
// Changed:   the block's size is a template argument, so the loop over s disappears.
// Published: 44.0 GB/s on a G80 (2^22 integers).
//
// With kBlock known to the compiler, `s` is a constant in every step: what is left of the loop is
// one comparison and one addition a step. The published kernel is made for nine block sizes, and
// the host chooses one; this ladder keeps to 256.
//
// What is wrong with it. 2^25 elements still take 65,536 blocks. Each is started, loads two
// elements a thread, waits for them, and adds a tree for the sake of 512 elements.
#pragma once

#include "cuda/ladder/reduce/finish.cuh"

namespace xgemm::cuda::ladder::reduce::rung5 {

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

template <unsigned kBlock>
__global__ void sum_kernel(const float* x, float* partials) {
  XGEMM_STATIC_SHARED(Buffer, shared);
  const unsigned tid = threadIdx.x;
  const int64_t first = int64_t{blockIdx.x} * kTile;
  shared[tid] = x[first + tid] + x[first + tid + kThreads];
  __syncthreads();

#pragma unroll
  for (unsigned s = kBlock / 2; s > 32; s /= 2) {
    if (tid < s) shared[tid] += shared[tid + s];
    __syncthreads();
  }
  if (tid < 32) add_last_64(shared, tid);
  if (tid == 0) partials[blockIdx.x] = shared[0];
}

inline Status run(const Sum& sum) {
  const auto blocks = static_cast<unsigned>(sum.count / kTile);
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = sum.stream};
  const Status status =
      launch_grid("ladder reduce: rung 5", grid, sum_kernel<kThreads>, sum.x, sum.partials);
  return status.ok() ? finish(sum, static_cast<int>(blocks)) : status;
}

}  // namespace xgemm::cuda::ladder::reduce::rung5
