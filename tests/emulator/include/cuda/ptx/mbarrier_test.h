// csrc/cuda/ptx/mbarrier_test.h, emulated.
#pragma once

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

inline bool mbarrier_test(uint64_t* barrier, uint32_t parity) {
  return emulator::mbarrier_test(barrier, parity);
}

}  // namespace xgemm::ptx
