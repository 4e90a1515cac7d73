// Bulk copies of contiguous bytes with a policy for L2 (sm_90): no tensor map, one thread issues
// them.
#pragma once

#include <cstdint>

#include "cuda/ptx/l2_policy.h"
#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

// `bytes` from global to this CTA's shared memory, counted by `barrier`. Both addresses and `bytes`
// are multiples of 16.
__device__ inline void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(smem_address(dst)),
      "l"(src), "r"(bytes), "r"(smem_address(barrier)), "l"(policy)
      : "memory");
}

}  // namespace xgemm::ptx
