// From a word of packed E2M1 codes to the A fragment of mma.m16n8k16.
#pragma once

#include "cuda/ptx/half2.h"
#include "cuda/ptx/lop3.h"

namespace xgemm::cuda::w4a16 {

// What dequantize_fp4_fragment<T>'s weights are to be multiplied by. Where a code's exponent lies
// in a half's, 0 to 3, it stands for 2^-14 of what it means. Sums lose nothing by that: fp32 has as
// much room below them.
template <typename T>
inline constexpr float kFp4Unit = std::is_same_v<T, __half> ? 16384.0f : 1.0f;

// A lane's 8 weights of a strip's 16 columns x 16 k, in units of kFp4Unit, exactly. `word` has the
// nibbles a0 a2 a4 a6 a1 a3 a5 a7; a nibble is the sign, two bits of exponent and one of mantissa,
// which keep their order in a half or bfloat16. An exponent of 0 is a subnormal number in all
// three.
template <typename T>
__device__ inline void dequantize_fp4_fragment(uint32_t word, uint32_t (&a)[4]) {
  constexpr uint32_t kSigns = 0x80008000;
  constexpr bool kHalf = std::is_same_v<T, __half>;
  constexpr uint32_t kMagnitudes = kHalf ? 0x0e000e00 : 0x01c001c0;
  constexpr int kLowest = kHalf ? 9 : 6;  // the place of the mantissa's bit
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int up = kLowest - 4 * i;
    const uint32_t moved = up >= 0 ? word << up : word >> -up;
    a[i] = ptx::lop3_and_or(word << (12 - 4 * i), kSigns, moved & kMagnitudes);
    // Of bfloat16 the unit would be 2^126, and sums would leave fp32.
    constexpr uint32_t kTwoTo126 = 0x7e807e80;
    if constexpr (!kHalf) a[i] = ptx::fma_x2<T>(a[i], kTwoTo126, kSigns);
  }
}

}  // namespace xgemm::cuda::w4a16
