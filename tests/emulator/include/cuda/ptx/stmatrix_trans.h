// csrc/cuda/ptx/stmatrix_trans.h, emulated.
#pragma once

#include "emulator/tensor_core.h"

namespace xgemm::ptx {

inline void stmatrix_x4_trans(void* row, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  emulator::stmatrix_trans(row, 4, {r0, r1, r2, r3});
}

}  // namespace xgemm::ptx
