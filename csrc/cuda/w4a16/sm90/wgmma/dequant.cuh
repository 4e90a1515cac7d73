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
  __device__ static Type of(float x, float y) { return __floats2half2_rn(x, y); }
};

template <>
struct Pair<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  __device__ static Type both(float x) { return __float2bfloat162_rn(x); }
  __device__ static Type of(float x, float y) { return __floats2bfloat162_rn(x, y); }
};

template <typename P>
__device__ inline P pair_of(uint32_t bits) {
  return *reinterpret_cast<const P*>(&bits);
}
template <typename P>
__device__ inline uint32_t bits_of(P pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <typename P>
__device__ inline P low_twice(P pair) {
  return pair_of<P>(bits_of(pair) << 16 | (bits_of(pair) & 0xffff));
}
template <typename P>
__device__ inline P high_twice(P pair) {
  return pair_of<P>((bits_of(pair) & 0xffff0000) | bits_of(pair) >> 16);
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
  bool short_group = false;  // of less than 64 k
};

// A lane's columns: gid (0) and gid + 8 (1) of its warp's strip. kForeign: the scales are of the
// 16-bit type that the activations do not have.
//
// A nibble becomes a number by the bits of 1024 (128 in bf16) above it. That and an integer near
// the zero point are subtracted exactly, so that fma(code - near, scale, (near - zero) * scale)
// rounds once (and, for a zero point that is no integer, the last term, which is small).
//
// Where there are no zero points and scales are not large, a nibble is taken for the subnormal
// number that it is without more bits: fma(code * 2^-e, scale * 2^e, -8 * scale) has the same bits,
// with 10 or 11 instructions for 8 codes instead of 13 or 15.
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

  // By a whole warp.
  __device__ void load_group(const ScaleSource& source) {
    [[maybe_unused]] uint32_t scales[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint16_t* scale = reinterpret_cast<const uint16_t*>(source.scales) + row * 8;
      const uint32_t bits = scales[row] = *scale;
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
    if constexpr (!kForeign) {
      if (!source.zeros && !source.short_group)
        choose_subnormal(pair_of<P>(scales[1] << 16 | scales[0]));
    }
  }

  // Scales that have been read, of a format without zero points.
  __device__ void set_scales(uint32_t first, uint32_t second) {
    static_assert(!kForeign, "scales of the activations' type");
    scale_[0] = pair_of<P>(first << 16 | first), scale_[1] = pair_of<P>(second << 16 | second);
    choose_subnormal(pair_of<P>(second << 16 | first));
  }

  // Whether expand_subnormal shall be called, and not expand: the same for all lanes of a warp.
  __device__ bool subnormal() const { return !kForeign && subnormal_; }

  __device__ void expand_subnormal(uint32_t word, uint32_t (&a)[4]) const {
    if constexpr (kHalf) {
      const uint32_t low = word << 2, high = word >> 6;
      a[0] = multiplied(0, low & 0x003c003c);
      a[1] = multiplied(1, low & 0x03c003c0);
      a[2] = multiplied(0, high & 0x003c003c);
      a[3] = multiplied(1, high & 0x03c003c0);
    } else {
      a[0] = multiplied(0, word & 0x000f000f);
      a[1] = multiplied(1, word >> 1 & 0x00780078);
      a[2] = multiplied(0, word >> 8 & 0x000f000f);
      a[3] = multiplied(1, word >> 9 & 0x00780078);
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
  static constexpr float kMaxNear = 100.0f;  // bf16 has all integers up to 256

  // What is added to the number a nibble was made. In fp16 those of row 1 are 16 codes above 1024,
  // of which a 16th is taken first.
  __device__ static P offset_of(int row, float near) {
    constexpr float kMagic = kHalf ? 1024.0f : 128.0f;
    return Pair<T>::both(-(kHalf && row == 1 ? kMagic / 16 : kMagic) - near);
  }

  // `scales` of both columns. They are multiplied by 2^e, exactly, where that is finite: codes that
  // expand_subnormal masks are 2^-22 (row 0) and 2^-18 each, in bf16 2^-133 and 2^-130. In two
  // steps, since 2^133 is no number.
  __device__ void choose_subnormal(P scales) {
    const P most = kHalf ? Pair<T>::of(0x1p-6f, 0x1p-2f) : Pair<T>::of(0x1p-5f, 0x1p-2f);
    const P step = kHalf ? Pair<T>::of(0x1p11f, 0x1p9f) : Pair<T>::of(0x1p67f, 0x1p65f);
    const P last = kHalf ? step : Pair<T>::of(0x1p66f, 0x1p65f);
    subnormal_ = __all_sync(~0u, __hblt2(__habs2(scales), most));
    const P large = __hmul2(__hmul2(scales, step), last);
    const P rest = __hmul2(scales, Pair<T>::both(-8.0f));
    if (subnormal_) {
      scale_[0] = low_twice(large), scale_[1] = high_twice(large);
      rest_[0] = low_twice(rest), rest_[1] = high_twice(rest);
    } else {
      rest_[0] = rest_[1] = Pair<T>::both(0.0f);
    }
  }

  __device__ uint32_t multiplied(int row, uint32_t codes) const {
    return bits_of(__hfma2(pair_of<P>(codes), scale_[row], rest_[row]));
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
    const float near = rintf(fminf(fmaxf(zero, -kMaxNear), kMaxNear));
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
  bool subnormal_ = false;
};

// Words `first` and on of a unit's.
template <typename T, bool kForeign, int kWords>
__device__ inline void expand_words(const Dequantizer<T, kForeign>& dequantizer,
                                    const uint32_t (&words)[8], int first,
                                    uint32_t (&a)[kWords][4]) {
  if (dequantizer.subnormal()) [[likely]] {
#pragma unroll
    for (int j = 0; j < kWords; ++j) dequantizer.expand_subnormal(words[first + j], a[j]);
  } else {
#pragma unroll
    for (int j = 0; j < kWords; ++j) dequantizer.expand(words[first + j], a[j]);
  }
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
