// From codes to the operand of small-M tiles: code - zero, exactly, and the scale for the sums.
#pragma once

#include "cuda/ptx/lop3.h"
#include "cuda/w4a16/sm90/wgmma/near_zeros.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// A lane's columns: gid (0) and gid + 8 (1) of its warp's strip. The operand is the code less its
// zero point, which needs one instruction less for every two codes than the weight itself; the
// scale, of either 16-bit type, multiplies a group's fp32 sums.
//
// A nibble becomes a number by the bits of 1024 (128 in bf16) above it. That and the integer next
// to the zero point are subtracted exactly. What a zero point is off that integer is added only
// where there is such a zero point in the warp.
template <typename T>
class Centered {
  using P = typename Pair<T>::Type;
  static constexpr bool kHalf = std::is_same_v<T, __half>;

 public:
  __device__ Centered() { set_zeros(__float2half2_rn(8.0f)); }

  // By a whole warp. kPlain: as is_plain() has it.
  template <bool kPlain>
  __device__ void load_group(const ScaleSource& source, bool bf16_scales) {
    const auto* scales = reinterpret_cast<const uint16_t*>(source.scales);
    const bool bf16 = !(kPlain && kHalf) && bf16_scales;
    scale_[0] = float_of(scales[0], bf16), scale_[1] = float_of(scales[8], bf16);
    if (!kPlain && source.zeros) {
      const auto* zeros = scales + source.zeros_apart / 2;
      set_zeros(pair_of<__half2>(zeros[0] | static_cast<uint32_t>(zeros[8]) << 16));
      any_rest_ = __any_sync(~0u, bits_of(rest_) != 0);
    }
  }

  __device__ float scale(int row) const { return scale_[row]; }

  // Words of the packed layout, each a lane's part of a 16x16 operand.
  template <bool kPlain, int kWords>
  __device__ void expand(const uint32_t (&words)[kWords], uint32_t (&a)[kWords][4]) const {
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      const uint32_t word = words[j], upper = word >> 8;
      if constexpr (kHalf) {
        a[j][0] = centered<kPlain>(0, ptx::lop3_and_or(word, 0x000f000f, 0x64006400));
        a[j][1] = centered<kPlain>(1, ptx::lop3_and_or(word, 0x00f000f0, 0x64006400));
        a[j][2] = centered<kPlain>(0, ptx::lop3_and_or(upper, 0x000f000f, 0x64006400));
        a[j][3] = centered<kPlain>(1, ptx::lop3_and_or(upper, 0x00f000f0, 0x64006400));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[j][i] =
              centered<kPlain>(i % 2, ptx::lop3_and_or(word >> (4 * i), 0x000f000f, 0x43004300));
        }
      }
    }
    if constexpr (!kPlain) {
      if (!any_rest_) [[likely]]
        return;
      const P rest[2] = {both_low(rest_), both_high(rest_)};
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[j][i] = bits_of(__hadd2(pair_of<P>(a[j][i]), rest[i % 2]));
      }
    }
  }

 private:
  // Of the commonest format the offsets are immediate operands.
  template <bool kPlain>
  __device__ uint32_t centered(int row, uint32_t bits) const {
    constexpr float kEight = kHalf ? -1032.0f : -136.0f;
    const P number = pair_of<P>(bits);
    const P offset = kPlain ? Pair<T>::both(kHalf && row == 1 ? -72.0f : kEight)
                     : row  ? both_high(offset_)
                            : both_low(offset_);
    return bits_of(kHalf && row == 1 ? __hfma2(number, Pair<T>::both(0.0625f), offset)
                                     : __hadd2(number, offset));
  }

  __device__ void set_zeros(__half2 zeros) {
    const NearZeros<T> near(zeros);
    offset_ = near.offset;
    if constexpr (kHalf) {
      rest_ = near.apart;
    } else {
      rest_ = __float22bfloat162_rn(__half22float2(near.apart));
    }
  }

  float scale_[2];
  P offset_, rest_;  // of both columns
  bool any_rest_ = false;
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
