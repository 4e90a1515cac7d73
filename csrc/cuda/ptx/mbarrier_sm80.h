// mbarrier instructions that sm_80 has too.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

// Waits, awake, for the phase of this parity to end; then sees what was written before arriving.
__device__ inline void mbarrier_spin(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(smem_address(barrier)), "r"(parity)
        : "memory");
  }
}

}  // namespace xgemm::ptx
