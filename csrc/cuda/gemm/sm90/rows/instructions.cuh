// Instructions (sm_90, PTX ISA 8.1) that only this kernel uses: stores into the shared memory of
// another CTA of the cluster, and TMA loads over 3-D maps with a policy for L2.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace xgemm::cuda::gemm::sm90::rows {

__device__ inline uint32_t cluster_id() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
}

__device__ inline uint32_t cluster_count() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}

// The shared::cluster address that `address` (shared::cta) has in CTA `cta_rank` of the cluster.
__device__ inline uint32_t mapa(uint32_t address, uint32_t cta_rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta_rank));
  return remote;
}

// Asynchronous stores, counted in bytes by the barrier beside the data: no fence on either side.
__device__ inline void st_async_v4(uint32_t remote, uint32_t remote_barrier, float x0, float x1,
                                   float x2, float x3) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, "
      "[%1];" ::"r"(remote),
      "r"(remote_barrier), "f"(x0), "f"(x1), "f"(x2), "f"(x3)
      : "memory");
}

__device__ inline void st_async_v2(uint32_t remote, uint32_t remote_barrier, float x0, float x1) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2, %3}, [%1];" ::"r"(
          remote),
      "r"(remote_barrier), "f"(x0), "f"(x1)
      : "memory");
}

__device__ inline void tma_load_3d(void* dst, const CUtensorMap* map, uint64_t* barrier,
                                   uint64_t policy, int inner, int outer, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(ptx::smem_address(dst)),
      "l"(map), "r"(ptx::smem_address(barrier)), "r"(inner), "r"(outer), "r"(batch), "l"(policy)
      : "memory");
}

}  // namespace xgemm::cuda::gemm::sm90::rows
