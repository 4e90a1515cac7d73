// ld.shared of two floats.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// From the shared-memory address `smem`, a multiple of 8. The assembler moves it neither past
// another of its kind nor down to its first use.
__device__ inline float2 ld_shared2_in_order(uint32_t smem) {
  float2 v;
  asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(smem));
  return v;
}

}  // namespace xgemm::ptx
