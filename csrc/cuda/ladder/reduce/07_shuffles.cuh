// Ladder reduce, rung 7: warps add by shuffles.
//
// Source:    Justin Luitjens, "Faster Parallel Reductions on Kepler" (NVIDIA developer blog).
// Changed:   a warp adds its 32 sums by shuffles; shared memory holds one sum a warp.
// Published: no bandwidth for this step alone.
//
// __shfl_xor_sync hands a register to another lane of the warp. Five of them add 32 lanes (add_warp
// in finish.cuh), with no shared memory and no barrier. The block then adds the sums of its 8
// warps: one barrier instead of three, 32 bytes of shared memory instead of 1 KB.
//
// What is wrong with it. The tree is 1 % of the time by now. What is left is how the loop loads: a
// request of 4 bytes a lane moves 128 bytes a warp, and with two of them under way a full SM has 16
// KB in flight. Latency times bandwidth of an H200 asks for about twice as much (the page has the
// arithmetic).
#pragma once

#include "cuda/ladder/reduce/finish.cuh"

namespace xgemm::cuda::ladder::reduce::rung7 {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
// Elements that a block adds at a time: two a thread.
inline constexpr int kTile = 2 * kThreads;
inline constexpr int kBlocksPerSm = 8;  // 2048 threads: as many as an SM of the H200 holds
__global__ void sum_kernel(const float* x, int64_t count, float* partials) {
  using WarpSums = float[kWarps];
  XGEMM_STATIC_SHARED(WarpSums, warp_sums);
  const unsigned tid = threadIdx.x;
  float sum = 0.0f;
  for (int64_t i = int64_t{blockIdx.x} * kTile + tid; i < count; i += int64_t{gridDim.x} * kTile) {
    sum += x[i] + x[i + kThreads];
  }

  sum = add_warp(sum);
  if (tid % 32 == 0) warp_sums[tid / 32] = sum;
  __syncthreads();
  if (tid == 0) {
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) sum += warp_sums[warp];
    partials[blockIdx.x] = sum;
  }
}

inline Status run(const Sum& sum) {
  const int64_t most = sum.count / kTile, wanted = int64_t{sum.sm_count} * kBlocksPerSm;
  const auto blocks = static_cast<unsigned>(most < wanted ? most : wanted);
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = sum.stream};
  const Status status =
      launch_grid("ladder reduce: rung 7", grid, sum_kernel, sum.x, sum.count, sum.partials);
  return status.ok() ? finish(sum, static_cast<int>(blocks)) : status;
}

}  // namespace xgemm::cuda::ladder::reduce::rung7
