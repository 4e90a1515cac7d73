// Sums of parts of K, in an order that depends on nothing but their number.
#pragma once

#include "cuda/gemm/fp32/epilogue.cuh"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::fp32 {

inline constexpr int kPartsThreads = 256;

// Four columns of a row, summed by as many threads as there are groups.
template <int kGroups>
struct PartsOfQuad {
  static constexpr int kQuads = kPartsThreads / kGroups;  // of a block
  int quad, group;

  __device__ PartsOfQuad() : quad(threadIdx.x % kQuads), group(threadIdx.x / kQuads) {}

  // Of the group. `from`: the first part's.
  __device__ float4 sum(const float* from, int64_t stride, int parts) const {
    float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
    from += group * stride;
#pragma unroll 8
    for (int part = group; part < parts; part += kGroups, from += kGroups * stride) {
      add(&total, *reinterpret_cast<const float4*>(from));
    }
    return total;
  }

  // Of all groups, in the first one. For all threads of a block together, once.
  __device__ float4 sum_of_groups(float4 mine) const {
    if constexpr (kGroups > 1) {
      struct Storage {
        float4 sums[kGroups][kQuads];
      };
      XGEMM_STATIC_SHARED(Storage, smem);
      smem.sums[group][quad] = mine;
      __syncthreads();
      if (group == 0) {
#pragma unroll
        for (int i = 1; i < kGroups; ++i) add(&mine, smem.sums[i][quad]);
      }
    }
    return mine;
  }

 private:
  __device__ static void add(float4* to, float4 x) {
    to->x += x.x, to->y += x.y, to->z += x.z, to->w += x.w;
  }
};

}  // namespace xgemm::cuda::gemm::fp32
