// Stores into the shared memory of another CTA of the cluster (sm_90), counted in bytes by the
// barrier beside the data: no fence on either side.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// The shared::cluster address that `address` (shared::cta) has in CTA `cta_rank` of the cluster.
__device__ inline uint32_t mapa(uint32_t address, uint32_t cta_rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta_rank));
  return remote;
}

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

}  // namespace xgemm::ptx
