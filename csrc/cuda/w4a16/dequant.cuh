// From a word of packed codes to the A fragment of mma.m16n8k16, and from a scale's bits to fp32.
#pragma once

#include "cuda/ptx/half2.h"
#include "cuda/ptx/lop3.h"

namespace xgemm::cuda::w4a16 {

// A lane's 8 weights of a strip's 16 columns x 16 k, as code - kMinus (0 or 8), which both types
// hold exactly. `word` has the nibbles a0 a2 a4 a6 a1 a3 a5 a7: the two of a register are 16 bits
// apart.
template <typename T, int kMinus = 8>
__device__ inline void dequantize_fragment(uint32_t word, uint32_t (&a)[4]) {
  static_assert(kMinus == 0 || kMinus == 8);
  if constexpr (std::is_same_v<T, __half>) {
    // Below the exponent of 1024 a code is worth itself, or 16 times as much, 4 bits higher up.
    constexpr uint32_t kLow = 0x000f000f, kHigh = 0x00f000f0, k1024 = 0x64006400;
    constexpr uint32_t kSixteenth = 0x2c002c00;
    constexpr uint32_t kMinus1024 = kMinus == 0 ? 0xe400e400 : 0xe408e408;  // and kMinus
    constexpr uint32_t kMinus64 = kMinus == 0 ? 0xd400d400 : 0xd480d480;
    const uint32_t upper = word >> 8;
    a[0] = ptx::add_f16x2(ptx::lop3_and_or(word, kLow, k1024), kMinus1024);
    a[1] = ptx::fma_x2<T>(ptx::lop3_and_or(word, kHigh, k1024), kSixteenth, kMinus64);
    a[2] = ptx::add_f16x2(ptx::lop3_and_or(upper, kLow, k1024), kMinus1024);
    a[3] = ptx::fma_x2<T>(ptx::lop3_and_or(upper, kHigh, k1024), kSixteenth, kMinus64);
  } else {
    // Seven bits of mantissa: only the lowest nibble has a place below the exponent, of 128.
    constexpr uint32_t kMask = 0x000f000f, k128 = 0x43004300;
    constexpr uint32_t kOne = 0x3f803f80;
    constexpr uint32_t kMinus128 = kMinus == 0 ? 0xc300c300 : 0xc308c308;  // and kMinus
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = ptx::fma_x2<T>(ptx::lop3_and_or(word >> 4 * i, kMask, k128), kOne, kMinus128);
    }
  }
}

// Two ones.
template <typename T>
inline constexpr uint32_t kOnes = std::is_same_v<T, __half> ? 0x3c003c00 : 0x3f803f80;

__device__ inline float half_bits_to_float(uint16_t bits) {
  return __half2float(*reinterpret_cast<const __half*>(&bits));
}

// A scale, fp16 or bf16.
__device__ inline float scale_to_float(uint16_t bits, bool bf16) {
  return bf16 ? __uint_as_float(uint32_t{bits} << 16) : half_bits_to_float(bits);
}

}  // namespace xgemm::cuda::w4a16
