// Loads of what is read once: the caches drop it first.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

__device__ inline uint16_t ld_global_streaming(const uint16_t* pointer) {
  uint16_t v;
  asm volatile("ld.global.cs.u16 %0, [%1];" : "=h"(v) : "l"(pointer));
  return v;
}
__device__ inline uint32_t ld_global_streaming(const uint32_t* pointer) {
  uint32_t v;
  asm volatile("ld.global.cs.u32 %0, [%1];" : "=r"(v) : "l"(pointer));
  return v;
}

}  // namespace xgemm::ptx
