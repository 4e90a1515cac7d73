// Bulk copies of contiguous bytes (sm_90): no tensor map, one thread issues them.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

// `bytes` from global to this CTA's shared memory, counted by `barrier`. Both addresses and `bytes`
// are multiples of 16.
__device__ inline void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem_address(dst)),
      "l"(src), "r"(bytes), "r"(smem_address(barrier))
      : "memory");
}

}  // namespace xgemm::ptx
