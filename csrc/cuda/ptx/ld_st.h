// Loads and stores that C++ does not say.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

// 16 aligned bytes that nobody writes meanwhile and that are read once: they need no place in L1.
__device__ inline uint4 ld_global_nc_no_allocate(const void* pointer) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}

// 16 aligned bytes that nobody writes meanwhile.
__device__ inline uint4 ld_global_nc(const void* pointer) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}

// The same, where L2 keeps them as `policy` says, which createpolicy has made or a constant below.
__device__ inline uint4 ld_global_nc_no_allocate(const void* pointer, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer), "l"(policy));
  return v;
}
__device__ inline uint4 ld_global_nc(const void* pointer, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer), "l"(policy));
  return v;
}

// The float at the same place in the shared memory of another CTA of the cluster.
__device__ inline float ld_shared_cluster(const float* pointer, uint32_t cta_rank) {
  float value;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n"
      "}\n"
      : "=f"(value)
      : "r"(smem_address(pointer)), "r"(cta_rank)
      : "memory");
  return value;
}

// From the shared-memory address `smem`, a multiple of 16.
__device__ inline float4 ld_shared(uint32_t smem) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(smem)
               : "memory");
  return v;
}

// The same; the assembler moves it neither past another of its kind nor down to its first use.
__device__ inline float4 ld_shared_in_order(uint32_t smem) {
  float4 v;
  asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(smem));
  return v;
}

// The same of two floats; `smem` is a multiple of 8.
__device__ inline float2 ld_shared2_in_order(uint32_t smem) {
  float2 v;
  asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(smem));
  return v;
}

// To the shared-memory address `smem`, a multiple of 16.
__device__ inline void st_shared(uint32_t smem, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

}  // namespace xgemm::ptx
