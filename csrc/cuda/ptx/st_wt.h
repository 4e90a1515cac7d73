// Stores that are written through.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace xgemm::ptx {

// Two neighbours, at an address that is a multiple of 4.
__device__ inline void st_global_write_through(__nv_bfloat16* pointer, __nv_bfloat162 pair) {
  asm volatile("st.global.wt.b32 [%0], %1;" ::"l"(pointer),
               "r"(*reinterpret_cast<const uint32_t*>(&pair))
               : "memory");
}

}  // namespace xgemm::ptx
