// Two fp16 or bf16 numbers in a word: their signs, and equal bits for numbers that compare equal.
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

// The sign of each, 16 times. (__byte_perm has no way to say it.)
__device__ inline uint32_t signs_16x2(uint32_t pair) {
  uint32_t signs;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(pair));
  return signs;
}

}  // namespace xgemm::ptx
