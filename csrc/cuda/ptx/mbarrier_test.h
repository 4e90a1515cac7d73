// mbarrier.test_wait (sm_80 and later): a look at a barrier that will be waited for.
#pragma once

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

// Whether mbarrier_wait would not wait. Then what the phase has brought may be read.
__device__ inline bool mbarrier_test(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(smem_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace xgemm::ptx
