// Formats of the weight that kernels are compiled for, and a unit's scales and zeros in registers.
#pragma once

#include <type_traits>

#include "cuda/w4a16/sm90/skinny/cta.cuh"
#include "cuda/w4a16/sm90/skinny/dequant.cuh"

namespace xgemm::cuda::w4a16::sm90::skinny {

// What a kernel is compiled for. kPlain: the commonest (is_plain()), whose loop asks nothing, or in
// bf16 of which type scales are, and takes a tenth fewer instructions. kOneGroup: of a unit or of
// all K, else any. kFine: groups of fewer channels.
enum class Format { kPlain, kOneGroup, kFine };

// Bytes of the packed layout: constants where the format is known.
template <Format kFormat>
struct Sizes {
  int strip, unit;

  __device__ explicit Sizes(const Params& p)
      : strip(kPlain ? kPlainStrip : p.strip_bytes),
        unit(kPlain ? kPlainStrip * kUnitStrips : p.unit_bytes) {}

 private:
  static constexpr bool kPlain = kFormat == Format::kPlain;
  static constexpr int kPlainStrip = w4::kStripCodeBytes + w4::kStripColumns * w4::kScaleBytes;
  static constexpr int kUnitStrips = w4::kRowColumns / w4::kStripColumns;
};

// Small groups have more sums to part than words.
template <typename T, Format kFormat>
inline constexpr bool kShared = Codes<T>::kMayShare && kFormat != Format::kFine;

inline constexpr int kPassStrips = 2;  // multiplied at a time: what registers allow

// Scales and zeros of a lane's columns, gid and gid + 8 of two strips. Where a unit has several
// groups, lane (gid, tig) has those of group tig.
template <typename T, Format kFormat>
struct Scales {
  uint32_t scale_bits[kPassStrips][2], zero_bits[kPassStrips][2];
  float scale[kPassStrips][2];
  float zero[kPassStrips][2];  // minus the zero point, in the terms of mma's products

  __device__ void load(const Params& p, const uint8_t* stage, int lane) {
    if (kFormat == Format::kOneGroup && p.groups == 0) {  // they come at the end
#pragma unroll
      for (int i = 0; i < 4; ++i) scale_bits[i / 2][i % 2] = p.bf16_scales ? 0x3f80 : 0x3c00;
      return;
    }
    constexpr int kGroup = w4::kStripColumns * w4::kScaleBytes;
    constexpr bool kFine = kFormat == Format::kFine;
    const int group = kFine ? min(lane % 4, p.groups - 1) : 0;
    const int strip_bytes = Sizes<kFormat>(p).strip;
    const uint8_t* from = stage + w4::kStripCodeBytes + group * kGroup + lane / 4 * w4::kScaleBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* at = from + i / 2 * strip_bytes + i % 2 * (kGroup / 2);
      scale_bits[i / 2][i % 2] = *reinterpret_cast<const uint16_t*>(at);
    }
    if (!has_zeros(p)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* at = from + i / 2 * strip_bytes + i % 2 * (kGroup / 2);
      zero_bits[i / 2][i % 2] =
          *reinterpret_cast<const uint16_t*>(at + (kFine ? p.groups * kGroup : kGroup));
    }
  }

  // The products of columns gid + 8 are kUpper times as large.
  __device__ void convert(const Params& p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scale[i / 2][i % 2] = scale_to_float(scale_bits[i / 2][i % 2], are_bf16(p));
      zero[i / 2][i % 2] = -(w4::kSymmetricZero + Codes<T>::kOffset) *
                           (factor(i) + (kShared<T, kFormat> && i % 2 == 1 ? 1.0f : 0.0f));
    }
    if (!has_zeros(p)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& point = zero[i / 2][i % 2];
      point = scale_to_float(zero_bits[i / 2][i % 2], false);
      if constexpr (Codes<T>::kOffset != 0) point += Codes<T>::kOffset;
      point *= -factor(i);
      if (kShared<T, kFormat> && i % 2 == 1) point += zero[i / 2][0];
    }
  }

 private:
  static constexpr bool kPlain = kFormat == Format::kPlain;
  __device__ static bool has_zeros(const Params& p) { return !kPlain && p.zeros_in_units; }
  __device__ static bool are_bf16(const Params& p) {
    return !(kPlain && std::is_same_v<T, __half>) && p.bf16_scales;
  }
  static constexpr float factor(int i) { return i % 2 == 0 ? 1.0f : Codes<T>::kUpper; }
};

}  // namespace xgemm::cuda::w4a16::sm90::skinny
