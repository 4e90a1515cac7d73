// csrc/cuda/ptx/max_nan.h, emulated.
#pragma once

#include <cmath>

namespace xgemm::ptx {

inline float max_nan(float a, float b) { return a != a || b != b ? NAN : a > b ? a : b; }

}  // namespace xgemm::ptx
