// csrc/cuda/ptx/ld_shared2.h, emulated.
#pragma once

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

inline float2 ld_shared2_in_order(uint32_t smem) {
  return *static_cast<const float2*>(emulator::shared_pointer(smem));
}

}  // namespace xgemm::ptx
