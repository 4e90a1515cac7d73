// csrc/cuda/ptx/ld_shared_word.h, emulated.
#pragma once

#include <cstdint>

#include "emulator/engine.h"

namespace xgemm::ptx {

inline float ld_shared1_in_order(uint32_t smem) {
  return *static_cast<const float*>(emulator::shared_pointer(smem));
}

}  // namespace xgemm::ptx
