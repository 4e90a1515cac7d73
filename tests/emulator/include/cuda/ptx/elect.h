// csrc/cuda/ptx/elect.h, emulated.
#pragma once

#include "emulator/engine.h"

namespace xgemm::ptx {

inline bool elect_one() { return threadIdx.x % 32 == 0; }

}  // namespace xgemm::ptx
