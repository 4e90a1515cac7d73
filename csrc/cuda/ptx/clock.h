// The multiprocessor's clock.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

__device__ inline int64_t clock() {
  int64_t cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

}  // namespace xgemm::ptx
