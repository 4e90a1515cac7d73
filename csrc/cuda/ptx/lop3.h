// lop3: any function of three bits, 32 times (sm_50).
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// Written out, since the compiler makes two instructions of it where b and c are constants.
__device__ inline uint32_t lop3_and_or(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));  // (a & b) | c
  return d;
}

}  // namespace xgemm::ptx
