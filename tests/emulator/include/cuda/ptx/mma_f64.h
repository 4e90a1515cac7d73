// csrc/cuda/ptx/mma_f64.h, emulated.
#pragma once

#include "emulator/tensor_core.h"

namespace xgemm::ptx {

inline void mma_m16n8k4_f64(double (&d)[4], double a0, double a1, double b) {
  emulator::mma_m16n8k4_f64(d, {a0, a1}, b);
}
inline double to_double(float x) { return x; }

}  // namespace xgemm::ptx
