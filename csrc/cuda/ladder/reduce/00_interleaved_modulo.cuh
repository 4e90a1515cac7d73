// Ladder reduce, rung 0: interleaved addressing, threads chosen by `tid % (2 * s)`.
//
// Source:    Mark Harris, "Optimizing Parallel Reduction in CUDA" (NVIDIA), kernel 1.
// Changed:   nothing yet: this is the first rung.
// Published: 2.1 GB/s on a G80 (2^22 integers).
//
// A block adds 256 elements as a tree, in shared memory. In step s every thread whose number is a
// multiple of 2 s adds its neighbour at distance s:
//
//   s = 1    thread 0 adds 1, thread 2 adds 3, thread 4 adds 5 ...
//   s = 2    thread 0 adds 2, thread 4 adds 6 ...
//   s = 128  thread 0 adds 128: the block's sum
//
// What is wrong with it. The threads that work are scattered over all warps: in the first step half
// of every warp's lanes work, in the second a quarter. A warp executes both sides of the branch
// whenever its lanes disagree, so all 8 warps stay busy until s = 32, and hardly a lane does useful
// work. And `%` of a number that is known only at run time is a dozen instructions or more.
#pragma once

#include "cuda/ladder/reduce/finish.cuh"

namespace xgemm::cuda::ladder::reduce::rung0 {

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
    if (tid % (2 * s) == 0) shared[tid] += shared[tid + s];
    __syncthreads();
  }
  if (tid == 0) partials[blockIdx.x] = shared[0];
}

inline Status run(const Sum& sum) {
  const auto blocks = static_cast<unsigned>(sum.count / kTile);
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = sum.stream};
  const Status status = launch_grid("ladder reduce: rung 0", grid, sum_kernel, sum.x, sum.partials);
  return status.ok() ? finish(sum, static_cast<int>(blocks)) : status;
}

}  // namespace xgemm::cuda::ladder::reduce::rung0
