// Scales and zero points of a unit, for weights that are dequantized whole, of any number of
// groups: prepared by a warp together, and handed to the lanes that need them.
#pragma once

#include "cuda/ptx/lop3.h"
#include "cuda/w4a16/sm90/wgmma/near_zeros.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// Of a strip, with scales of the activations' type. Each lane prepares those of two columns of a
// group: what it needs itself are two columns of every group, which would take it four times the
// instructions. The weights have the same bits as Dequantizer's.
template <typename T>
class UnitGroups {
  using P = typename Pair<T>::Type;
  static constexpr bool kHalf = std::is_same_v<T, __half>;

 public:
  // groups: of a unit.
  __device__ UnitGroups(int groups, int lane)
      : groups_(groups > 1 ? groups : 1),
        column_(lane / 4),
        from_(lane / 8 % groups_ * 32 + lane % 8 * 2) {}

  // scales: [groups][16 columns], and zero points `zeros_apart` bytes behind them.
  __device__ void load(const uint8_t* scales, int zeros_apart, bool zeros) {
    // Lane 8 g + c has columns c and c + 8 of group g.
    const P scale = pair_of<P>(columns_of(scales));
    const P most = kHalf ? Pair<T>::of(0x1p-6f, 0x1p-2f) : Pair<T>::of(0x1p-5f, 0x1p-2f);
    subnormal_ = !zeros && __all_sync(~0u, __hblt2(__habs2(scale), most));
    if (subnormal_) [[likely]] {
      set_subnormal(scale);
    } else {
      set_centered(scale, zeros ? pair_of<__half2>(columns_of(scales + zeros_apart))
                                : __float2half2_rn(8.0f));
    }
  }

  // Words `first` and on of the unit's, each a lane's part of a 16x16 operand.
  template <int kWords>
  __device__ void expand(const uint32_t (&words)[8], int first, uint32_t (&a)[kWords][4]) const {
    if (subnormal_) [[likely]] {
#pragma unroll
      for (int j = first; j < first + kWords; ++j) {
        expand_subnormal(words[j], of_word(words_[0], j), of_word(words_[1], j), a[j - first]);
      }
    } else {
#pragma unroll
      for (int j = first; j < first + kWords; ++j) {
        expand_centered(words[j], of_word(words_[0], j), of_word(words_[1], j),
                        of_word(bits_of(rest_), j), a[j - first]);
      }
    }
  }

 private:
  __device__ uint32_t columns_of(const uint8_t* strip) const {
    const auto* from = reinterpret_cast<const uint16_t*>(strip + from_);
    return from[0] | static_cast<uint32_t>(from[8]) << 16;
  }

  // What the lane with this one's column has, of the group of word `word`.
  __device__ P of_word(uint32_t bits, int word) const {
    return pair_of<P>(
        __shfl_sync(~0u, bits, static_cast<uint32_t>(word) / 2 * groups_ / 4 * 8 + column_));
  }

  // fma(code * 2^-e, scale * 2^e, -8 * scale).
  __device__ void set_subnormal(P scale) {
    const P step = kHalf ? Pair<T>::of(0x1p11f, 0x1p9f) : Pair<T>::of(0x1p67f, 0x1p65f);
    const P last = kHalf ? step : Pair<T>::of(0x1p66f, 0x1p65f);
    set_words(__hmul2(__hmul2(scale, step), last), __hmul2(scale, Pair<T>::both(-8.0f)));
  }

  // fma(code - near, scale, (near - zero) * scale).
  __device__ void set_centered(P scale, __half2 zero) {
    const NearZeros<T> zeros(zero);
    set_words(scale, zeros.offset);
    if constexpr (kHalf) {
      rest_ = __hmul2(zeros.apart, scale);
    } else {
      const float2 apart = __half22float2(zeros.apart), s = __bfloat1622float2(scale);
      rest_ = Pair<T>::of(apart.x * s.x, apart.y * s.y);
    }
  }

  __device__ void set_words(P scale, P added) {
    words_[0] = (bits_of(scale) & 0xffff) | bits_of(added) << 16;
    words_[1] = bits_of(scale) >> 16 | (bits_of(added) & 0xffff0000);
  }

  // first, second: of the lane's two columns, scale and what is added.
  __device__ static void expand_subnormal(uint32_t word, P first, P second, uint32_t (&a)[4]) {
    const uint32_t low = kHalf ? word << 2 : word, high = kHalf ? word >> 6 : word >> 8;
    constexpr uint32_t kCodes = kHalf ? 0x003c003c : 0x000f000f;
    a[0] = scaled(low & kCodes, first);
    a[2] = scaled(high & kCodes, first);
    a[1] = scaled(kHalf ? low & 0x03c003c0 : word >> 1 & 0x00780078, second);
    a[3] = scaled(kHalf ? high & 0x03c003c0 : word >> 9 & 0x00780078, second);
  }
  __device__ static uint32_t scaled(uint32_t codes, P by) {
    return bits_of(__hfma2(pair_of<P>(codes), both_low(by), both_high(by)));
  }

  __device__ static void expand_centered(uint32_t word, P first, P second, P rest,
                                         uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const P by = i % 2 ? second : first, more = i % 2 ? both_high(rest) : both_low(rest);
      P code;
      if constexpr (kHalf) {
        const uint32_t bits = i / 2 ? word >> 8 : word;
        const P number =
            pair_of<P>(ptx::lop3_and_or(bits, i % 2 ? 0x00f000f0 : 0x000f000f, 0x64006400));
        code = i % 2 ? __hfma2(number, Pair<T>::both(0.0625f), both_high(by))
                     : __hadd2(number, both_high(by));
      } else {
        const uint32_t bits = ptx::lop3_and_or(word >> (4 * i), 0x000f000f, 0x43004300);
        code = __hadd2(pair_of<P>(bits), both_high(by));
      }
      a[i] = bits_of(__hfma2(code, both_low(by), more));
    }
  }

  uint32_t words_[2] = {};  // of two columns: the scale, and what is added
  P rest_ = Pair<T>::both(0.0f);
  uint32_t groups_;
  int column_, from_;
  bool subnormal_ = false;
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
