// Bulk tensor copies of two dimensions (TMA, sm_90); coordinates count elements, the contiguous
// dimension first.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

__device__ inline void tma_load_2d(void* dst, const CUtensorMap* map, uint64_t* barrier, int inner,
                                   int outer) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(barrier)), "r"(inner), "r"(outer)
      : "memory");
}

// The same box into the same offsets of every CTA in `cta_mask`, each counted by its own barrier.
__device__ inline void tma_load_multicast_2d(void* dst, const CUtensorMap* map, uint64_t* barrier,
                                             uint16_t cta_mask, int inner, int outer) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(barrier)), "h"(cta_mask), "r"(inner), "r"(outer)
      : "memory");
}

__device__ inline void tma_store_2d(const CUtensorMap* map, const void* src, int inner, int outer) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(smem_address(src)), "r"(inner), "r"(outer)
      : "memory");
}

}  // namespace xgemm::ptx
