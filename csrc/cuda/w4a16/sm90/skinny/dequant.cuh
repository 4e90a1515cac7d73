// Codes to the 16-bit operand of mma, with no arithmetic: what the number is off by is put right in
// the fp32 sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/ptx/lop3.h"

namespace xgemm::cuda::w4a16::sm90::skinny {

// expand: a word of the packed layout, which is a lane's part of mma's 16x16 operand, to four
// registers. With `code` as the number wanted, what they hold is
//   rows 0 to 7:  (code + kOffset) * kUnit
//   rows 8 to 15: (code + kOffset) * kUnit * kUpper, and where kShared that of row - 8, too
// and kUnits is a register of two kUnit.
template <typename T>
struct Codes;

// A nibble in the lowest bits of an fp16 number is its code times 2^-24, exactly: a subnormal
// number, which tensor cores take as any other.
template <>
struct Codes<__half> {
  static constexpr uint32_t kUnits = 0x00010001;
  static constexpr float kUnit = 1.0f / (1 << 24), kUpper = 16.0f, kOffset = 0.0f;
  // A byte of two codes is such a number as well. Four instructions a word, where five would part
  // them all; the sums are parted instead.
  static constexpr bool kMayShare = true;

  template <bool kShared>
  __device__ static void expand(uint32_t word, uint32_t (&a)[4]) {
    const uint32_t upper = kShared ? __byte_perm(word, 0, 0x4341) : word >> 8;
    a[0] = word & 0x000f000f;
    a[1] = word & (kShared ? 0x00ff00ff : 0x00f000f0);
    a[2] = upper & 0x000f000f;
    a[3] = kShared ? upper : upper & 0x00f000f0;
  }
};

// bf16 has as many exponents as fp32, and a mantissa of 7 bits: the code is added to 128.
template <>
struct Codes<__nv_bfloat16> {
  static constexpr uint32_t kUnits = 0x3f803f80;
  static constexpr float kUnit = 1.0f, kUpper = 1.0f, kOffset = 128.0f;
  static constexpr bool kMayShare = false;

  template <bool kShared>
  __device__ static void expand(uint32_t word, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = ptx::lop3_and_or(word >> (4 * i), 0x000f000f, 0x43004300);
  }
};

__device__ inline float scale_to_float(uint32_t bits, bool bf16) {
  const auto half = static_cast<uint16_t>(bits);
  return bf16 ? __uint_as_float(bits << 16) : __half2float(reinterpret_cast<const __half&>(half));
}

}  // namespace xgemm::cuda::w4a16::sm90::skinny
