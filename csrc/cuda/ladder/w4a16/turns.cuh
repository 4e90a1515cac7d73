// Blocks that add to the same sums, one after the other.
#pragma once

#include <cuda_runtime.h>

#include "cuda/ptx/gpu_flag.h"

namespace xgemm::cuda::ladder::w4a16 {

// Of the blocks that have a part of a column, from its end on.
struct Turn {
  int number, parts;
  uint64_t* lock;  // how many have added their sums

  __device__ void wait(int tid) const {
    if (number == 0) return;
    while (tid == 0 && ptx::ld_acquire_gpu(lock) != static_cast<uint64_t>(number)) {
    }
    __syncthreads();
  }
  __device__ bool last() const { return number + 1 == parts; }
  __device__ void pass(int tid) const {
    if (tid == 0 && parts > 1) {
      ptx::st_release_gpu(lock, last() ? 0 : static_cast<uint64_t>(number + 1));
    }
  }
};

__device__ inline float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

}  // namespace xgemm::cuda::ladder::w4a16
