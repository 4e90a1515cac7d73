// Stream-K: clusters take equal ranges of the k-tiles of all tiles, where they begin and end within
// a tile, too. Who has the beginning of a tile's K completes its sums, by what the clusters of the
// rest leave in global memory (the fix-up).
//
// Ranges ascend while clusters descend: a sum that the end of a range leaves incomplete is
// completed by clusters of lower rank, which the GPU has started before. They had their part of the
// tile before anything else, so that it is there by then.
#pragma once

#include <cstdint>

#include "cuda/ptx/gpu_flag.h"
#include "cuda/tile/accumulators.cuh"

namespace xgemm::cuda {

// K-tiles, in the count that all tiles have in common.
struct StreamKRange {
  uint32_t begin, end;
};

// Where the i-th of ranges of `each` begins, of which the first `extra` have one more.
__device__ __forceinline__ uint32_t even_range_begin(uint32_t i, uint32_t each, uint32_t extra) {
  return i * each + min(i, extra);
}

// Leaves a thread's accumulators at `to`, a quad every `stride`.
template <int kSize>
__device__ __forceinline__ void leave_sums(float4* to, int stride, const float (&acc)[kSize]) {
#pragma unroll
  for (int j = 0; j < kSize / 4; ++j) to[j * stride] = quad_of(acc, j);
}

// One thread waits for the flag of sums that another cluster leaves. It is taken down: in a graph
// the next launch has the same nonce.
__device__ __forceinline__ void take_down_flag(uint64_t* flag, uint64_t nonce) {
  while (ptx::ld_acquire_gpu(flag) != nonce) {
  }
  *flag = 0;
}

}  // namespace xgemm::cuda
