// csrc/cuda/ptx/mma_tf32.h, emulated.
#pragma once

#include "emulator/tensor_core.h"

namespace xgemm::ptx {

inline void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], float b0, float b1) {
  emulator::mma_m16n8k8_tf32(d, a, {b0, b1});
}

}  // namespace xgemm::ptx
