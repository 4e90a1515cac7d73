// csrc/cuda/ptx/clock.h, emulated: both clocks go on by one when they are read.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

inline int64_t clock() {
  static int64_t cycles = 0;
  return ++cycles;
}

inline int64_t globaltimer() {
  static int64_t nanoseconds = 0;
  return ++nanoseconds;
}

}  // namespace xgemm::ptx
