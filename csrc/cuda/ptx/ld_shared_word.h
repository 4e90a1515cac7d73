// A load of one word of shared memory that is issued where it is written.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// From the shared-memory address `smem`, a multiple of 4; like those of ld_st.h.
__device__ inline float ld_shared1_in_order(uint32_t smem) {
  float value;
  asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(value) : "r"(smem));
  return value;
}

}  // namespace xgemm::ptx
