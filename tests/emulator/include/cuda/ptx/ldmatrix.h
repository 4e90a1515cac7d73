// csrc/cuda/ptx/ldmatrix.h, emulated.
#pragma once

#include "emulator/tensor_core.h"

namespace xgemm::ptx {

inline void ldmatrix_x4(uint32_t (&d)[4], uint32_t row) { emulator::ldmatrix(d, 4, row, false); }
inline void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t row) {
  emulator::ldmatrix(d, 4, row, true);
}
inline void ldmatrix_x2(uint32_t (&d)[2], uint32_t row) { emulator::ldmatrix(d, 2, row, false); }
inline void ldmatrix_x2_trans(uint32_t (&d)[2], uint32_t row) {
  emulator::ldmatrix(d, 2, row, true);
}
inline void ldmatrix_x1(uint32_t (&d)[1], uint32_t row) { emulator::ldmatrix(d, 1, row, false); }
inline void ldmatrix_x1_trans(uint32_t (&d)[1], uint32_t row) {
  emulator::ldmatrix(d, 1, row, true);
}

}  // namespace xgemm::ptx
