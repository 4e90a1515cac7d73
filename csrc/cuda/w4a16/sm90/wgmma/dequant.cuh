// From codes to wgmma's operand: w = (code - zero) * scale, rounded once to the activations' type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/lop3.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// Two numbers of the activations' type in a register, and what is done with them.
template <typename T>
struct Pair;

template <>
struct Pair<__half> {
  using Type = __half2;
  __device__ static Type both(float x) { return __float2half2_rn(x); }
};

template <>
struct Pair<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  __device__ static Type both(float x) { return __float2bfloat162_rn(x); }
};

template <typename P>
__device__ inline P pair_of(uint32_t bits) {
  return *reinterpret_cast<const P*>(&bits);
}
template <typename P>
__device__ inline uint32_t bits_of(P pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ inline float float_of(uint16_t bits, bool bf16) {
  return bf16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16)
              : __half2float(*reinterpret_cast<const __half*>(&bits));
}

// Where a lane finds the scales of its two columns, gid and gid + 8 of a strip, and their zeros
// `zeros_apart` bytes behind them.
struct ScaleSource {
  const uint8_t* scales;
  int zeros_apart;
  bool zeros;
};

// A lane's columns: gid (0) and gid + 8 (1) of its warp's strip. kForeign: the scales are of the
// 16-bit type that the activations do not have.
//
// A nibble becomes a number by the bits of 1024 (128 in bf16) above it. That and an integer near
// the zero point are subtracted exactly, so that fma(code - near, scale, (near - zero) * scale)
// rounds once (and, for a zero point that is no integer, the last term, which is small).
template <typename T, bool kForeign>
class Dequantizer {
  using P = typename Pair<T>::Type;
  static constexpr bool kHalf = std::is_same_v<T, __half>;

 public:
  __device__ Dequantizer() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      offset_[row] = offset_of(row, 8.0f);
      rest_[row] = Pair<T>::both(0.0f);
    }
  }

  __device__ void load_group(const ScaleSource& source) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint16_t* scale = reinterpret_cast<const uint16_t*>(source.scales) + row * 8;
      const uint32_t bits = *scale;
      if constexpr (kForeign) {
        set_foreign_scale(row, float_of(static_cast<uint16_t>(bits), kHalf));
      } else {
        scale_[row] = pair_of<P>(bits << 16 | bits);
      }
      if (source.zeros) {
        const uint16_t zero = *reinterpret_cast<const uint16_t*>(
            reinterpret_cast<const uint8_t*>(scale) + source.zeros_apart);
        set_zero(row, float_of(zero, false));
      }
    }
  }

  // A word of the packed layout: a lane's part of a 16x16 operand.
  __device__ void expand(uint32_t word, uint32_t (&a)[4]) const {
    if constexpr (kHalf) {
      const uint32_t upper = word >> 8;
      a[0] = scaled(0, ptx::lop3_and_or(word, 0x000f000f, 0x64006400));
      a[1] = scaled(1, ptx::lop3_and_or(word, 0x00f000f0, 0x64006400));
      a[2] = scaled(0, ptx::lop3_and_or(upper, 0x000f000f, 0x64006400));
      a[3] = scaled(1, ptx::lop3_and_or(upper, 0x00f000f0, 0x64006400));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = scaled(i % 2, ptx::lop3_and_or(word >> (4 * i), 0x000f000f, 0x43004300));
      }
    }
  }

 private:
  static constexpr float kMostNear = 100.0f;  // bf16 has all integers up to 256

  // What is added to the number a nibble was made. In fp16 those of row 1 are 16 codes above 1024,
  // of which a 16th is taken first.
  __device__ static P offset_of(int row, float near) {
    constexpr float kMagic = kHalf ? 1024.0f : 128.0f;
    return Pair<T>::both(-(kHalf && row == 1 ? kMagic / 16 : kMagic) - near);
  }

  __device__ uint32_t scaled(int row, uint32_t bits) const {
    const P number = pair_of<P>(bits);
    const P code = kHalf && row == 1 ? __hfma2(number, Pair<T>::both(0.0625f), offset_[row])
                                     : __hadd2(number, offset_[row]);
    if constexpr (!kForeign) {
      return bits_of(__hfma2(code, scale_[row], rest_[row]));
    } else if constexpr (kHalf) {
      return bits_of(__hmul2(__hfma2(code, scale_[row], rest_[row]), second_[row]));
    } else {
      return bits_of(__hfma2(code, scale_[row], __hfma2(code, second_[row], rest_[row])));
    }
  }

  // An fp16 scale is the sum of two bf16 numbers. A bf16 one may be too small for fp16, or have
  // bits that its subnormal numbers lack: it is 2^12 times as large until it has been multiplied.
  __device__ void set_foreign_scale(int row, float scale) {
    if constexpr (kHalf) {
      const bool small = fabsf(scale) < 1.0f / 1024;
      scale_[row] = Pair<T>::both(small ? scale * 4096.0f : scale);
      second_[row] = Pair<T>::both(small ? 1.0f / 4096 : 1.0f);
    } else {
      const float high = __bfloat162float(__float2bfloat16_rn(scale));
      scale_[row] = Pair<T>::both(high);
      second_[row] = Pair<T>::both(scale - high);
    }
  }

  __device__ void set_zero(int row, float zero) {
    const float near = rintf(fminf(fmaxf(zero, -kMostNear), kMostNear));
    float scale = to_float(scale_[row]);
    if constexpr (kForeign && !kHalf) scale += to_float(second_[row]);
    offset_[row] = offset_of(row, near);
    rest_[row] = Pair<T>::both((near - zero) * scale);
  }

  __device__ static float to_float(P pair) {
    return float_of(static_cast<uint16_t>(bits_of(pair)), !kHalf);
  }

  P scale_[2], second_[2];  // second_: of a foreign scale
  P offset_[2], rest_[2];
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
