// Bulk tensor copies (TMA, sm_90); coordinates count elements, the contiguous dimension first.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

__device__ inline void prefetch_tensormap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// `policy`: of the L2 cache (l2_policy.h).
__device__ inline void tma_load_5d(void* dst, const CUtensorMap* map, uint64_t* barrier,
                                   uint64_t policy, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}

__device__ inline void tma_load_3d(void* dst, const CUtensorMap* map, uint64_t* barrier, int c0,
                                   int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

__device__ inline void tma_load_3d(void* dst, const CUtensorMap* map, uint64_t* barrier,
                                   uint64_t policy, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}

// The same box into the same offsets of every CTA in `cta_mask`, each counted by its own barrier.
__device__ inline void tma_load_multicast_5d(void* dst, const CUtensorMap* map, uint64_t* barrier,
                                             uint64_t policy, uint16_t cta_mask, int c0, int c1,
                                             int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3, %9;" ::"r"(
          smem_address(dst)),
      "l"(map), "r"(smem_address(barrier)), "h"(cta_mask), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
      "r"(c4), "l"(policy)
      : "memory");
}

__device__ inline void tma_load_multicast_3d(void* dst, const CUtensorMap* map, uint64_t* barrier,
                                             uint16_t cta_mask, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(smem_address(dst)),
      "l"(map), "r"(smem_address(barrier)), "h"(cta_mask), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

__device__ inline void tma_store_4d(const CUtensorMap* map, const void* src, int c0, int c1, int c2,
                                    int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(smem_address(src)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

__device__ inline void bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all but the last kPending of this thread's bulk stores have read their shared memory,
// so that it may be written again.
template <int kPending>
__device__ inline void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace xgemm::ptx
