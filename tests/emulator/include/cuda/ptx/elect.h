// csrc/cuda/ptx/elect.h, emulated: the first lane.
#pragma once

#include "cuda_runtime.h"

namespace xgemm::ptx {

inline bool elect_one() {
  __syncwarp();
  return threadIdx.x % 32 == 0;
}

}  // namespace xgemm::ptx
