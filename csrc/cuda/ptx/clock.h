// The multiprocessor's clock, and the time.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

__device__ inline int64_t clock() {
  int64_t cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

// Nanoseconds; it goes on in steps of up to a microsecond.
__device__ inline int64_t globaltimer() {
  int64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
  return nanoseconds;
}

}  // namespace xgemm::ptx
