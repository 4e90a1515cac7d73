// Ladder reduce, rung 6: many elements a thread.
//
// Source:    Mark Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA), kernel 7.
// Changed:   as many blocks as the GPU holds at once; each strides over x by the whole grid.
// Published: 62.7 GB/s on a G80 (2^22 integers).
//
// The tree is now paid once for thousands of elements instead of once for 512, and the second
// launch gets about a thousand sums instead of 65,536. Most additions happen in a register, in the
// loop. Algorithm cascading: n / p elements one after the other, then a tree over the p threads.
//
// What is wrong with it. At the end each block still goes through shared memory eight times, and
// the loop's loads are of 4 bytes, two at a time.
#pragma once

#include "cuda/ladder/reduce/finish.cuh"

namespace xgemm::cuda::ladder::reduce::rung6 {

inline constexpr int kThreads = 256;
using Buffer = float[kThreads];
// Elements that a block adds at a time: two a thread.
inline constexpr int kTile = 2 * kThreads;
inline constexpr int kBlocksPerSm = 8;  // 2048 threads: as many as an SM of the H200 holds

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
__global__ void sum_kernel(const float* x, int64_t count, float* partials) {
  XGEMM_STATIC_SHARED(Buffer, shared);
  const unsigned tid = threadIdx.x;
  float sum = 0.0f;
  for (int64_t i = int64_t{blockIdx.x} * kTile + tid; i < count; i += int64_t{gridDim.x} * kTile) {
    sum += x[i] + x[i + kThreads];
  }
  shared[tid] = sum;
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
  const int64_t most = sum.count / kTile, wanted = int64_t{sum.sm_count} * kBlocksPerSm;
  const auto blocks = static_cast<unsigned>(most < wanted ? most : wanted);
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = sum.stream};
  const Status status = launch_grid("ladder reduce: rung 6", grid, sum_kernel<kThreads>, sum.x,
                                    sum.count, sum.partials);
  return status.ok() ? finish(sum, static_cast<int>(blocks)) : status;
}

}  // namespace xgemm::cuda::ladder::reduce::rung6
