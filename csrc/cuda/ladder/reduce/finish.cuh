// The second launch of every rung: one block adds what the first launch has left.
#pragma once

#include "cuda/ladder/api.h"
#include "cuda/launch.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::ladder::reduce {

inline constexpr int kFinishThreads = 1024, kFinishWarps = kFinishThreads / 32;

__device__ inline float add_warp(float sum) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  return sum;
}

// <<<1, kFinishThreads>>>
__global__ void finish_kernel(const float* partials, int count, float* out) {
  using WarpSums = float[kFinishWarps];
  XGEMM_STATIC_SHARED(WarpSums, warp_sums);
  const int tid = static_cast<int>(threadIdx.x);
  float sum = 0.0f;
#pragma unroll 8
  for (int i = tid; i < count; i += kFinishThreads) sum += partials[i];
  sum = add_warp(sum);
  if (tid % 32 == 0) warp_sums[tid / 32] = sum;
  __syncthreads();
  if (tid < 32) {
    sum = add_warp(warp_sums[tid]);
    if (tid == 0) out[0] = sum;
  }
}

inline Status finish(const Sum& sum, int count) {
  const Grid grid{.blocks = 1, .threads = kFinishThreads, .stream = sum.stream};
  return launch_grid("ladder reduce: the second launch", grid, finish_kernel, sum.partials, count,
                     sum.out);
}

}  // namespace xgemm::cuda::ladder::reduce
