// csrc/cuda/ptx/st_wt.h, emulated.
#pragma once

#include <cuda_bf16.h>

#include "emulator/engine.h"

namespace xgemm::ptx {

inline void st_global_write_through(__nv_bfloat16* pointer, __nv_bfloat162 pair) {
  if (reinterpret_cast<uintptr_t>(pointer) % 4 != 0) emulator::fail("a store that is not aligned");
  pointer[0] = pair.x, pointer[1] = pair.y;
}

}  // namespace xgemm::ptx
