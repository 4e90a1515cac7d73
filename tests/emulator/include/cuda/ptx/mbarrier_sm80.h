// csrc/cuda/ptx/mbarrier_sm80.h, emulated.
#pragma once

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

inline void mbarrier_spin(uint64_t* barrier, uint32_t parity) {
  emulator::mbarrier_wait(barrier, parity);
}

}  // namespace xgemm::ptx
