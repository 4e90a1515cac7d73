// A flag in global memory between CTAs, and the data that it stands for.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// After everything that this thread has written, or seen written, can be seen by the whole GPU.
__device__ inline void st_release_gpu(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

// Before anything that this thread reads later.
__device__ inline uint64_t ld_acquire_gpu(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// 16 aligned bytes in one piece: whoever reads one half of them as it was written reads the other
// half so, too, and needs no fence between them.
__device__ inline void st_relaxed_gpu(ulonglong2* pointer, ulonglong2 v) {
  asm volatile(
      "{\n"
      ".reg .b128 whole;\n"
      "mov.b128 whole, {%1, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], whole;\n"
      "}\n" ::"l"(pointer),
      "l"(v.x), "l"(v.y)
      : "memory");
}
__device__ inline ulonglong2 ld_relaxed_gpu(const ulonglong2* pointer) {
  ulonglong2 v;
  asm volatile(
      "{\n"
      ".reg .b128 whole;\n"
      "ld.relaxed.gpu.global.b128 whole, [%2];\n"
      "mov.b128 {%0, %1}, whole;\n"
      "}\n"
      : "=l"(v.x), "=l"(v.y)
      : "l"(pointer)
      : "memory");
  return v;
}

// 16 aligned bytes that another SM has written: past L1.
__device__ inline float4 ld_global_cg(const float4* pointer) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(pointer)
               : "memory");
  return v;
}

}  // namespace xgemm::ptx
