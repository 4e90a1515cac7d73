// Two fp16 or bf16 numbers in a word, with one bit pattern for each number that compares equal.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// -0 becomes 0, and every NaN 0x7fff; other numbers stay as they are (both from sm_80 on).
__device__ inline uint32_t canonical_f16x2(uint32_t pair) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(pair), "r"(0));
  return sum;
}
__device__ inline uint32_t canonical_bf16x2(uint32_t pair) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(pair), "r"(0x3f803f80), "r"(0));
  return sum;
}

}  // namespace xgemm::ptx
