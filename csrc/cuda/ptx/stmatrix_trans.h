// stmatrix.trans (sm_90): 8x8 matrices of 16-bit values from registers to shared memory, columns
// becoming rows. Lane 8 i + r gives the address of row r of matrix i.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

__device__ inline void stmatrix_x4_trans(void* row, uint32_t r0, uint32_t r1, uint32_t r2,
                                         uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   smem_address(row)),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace xgemm::ptx
