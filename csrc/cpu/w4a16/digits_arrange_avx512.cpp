// X to digits, as digits.h describes them.
#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "cpu/isa/avx512.h"
#include "cpu/w4a16/dequant.h"
#include "cpu/w4a16/digits.h"

namespace xgemm::cpu::w4a16 {
namespace {

constexpr int kWords = 4;  // vectors of 16 channels in half a unit, one for each j

// 2^e of a group, and its inverse, from the bits of the largest magnitude.
struct Power {
  float value, inverse;
  Power(uint32_t largest, int digits) {
    // The digits hold 0x7f7f.. at most, so a significand of 1.98 and more takes one power less.
    const uint32_t top = digits == 3 ? 22 : 14, more = (largest & 0x7fffff) >= 0x7e0000 ? 1 : 0;
    const uint32_t exponent = std::max<uint32_t>((largest >> 23) + more, 32) - top;
    value = std::bit_cast<float>(exponent << 23);
    inverse = std::bit_cast<float>((254 - exponent) << 23);
  }
};

// Of `count` vectors.
XGEMM_INLINE_VNNI uint32_t largest_magnitude(const float* values, int count, __m512 scale) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(values + 16 * i), scale);
    largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_castps_si512(v), magnitude));
  }
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(largest));
}

// The digits of half a unit, of integers [j][channel], each as [tig][j][h]: h is the channel
// 2 tig + 8 (h % 2) + h / 2.
template <int kDigits>
XGEMM_INLINE_VNNI void gather_digits(const __m512i q[kWords], __m512i out[kDigits]) {
  // Four channels are a 128-bit lane: a word for each byte of theirs.
  const __m512i by_byte =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  __m512i words[kWords];
#pragma GCC unroll 4
  for (int j = 0; j < kWords; ++j) words[j] = _mm512_shuffle_epi8(q[j], by_byte);
  const __m512i low[2] = {_mm512_unpacklo_epi32(words[0], words[1]),
                          _mm512_unpacklo_epi32(words[2], words[3])};
  out[0] = _mm512_unpacklo_epi64(low[0], low[1]);
  out[1] = _mm512_unpackhi_epi64(low[0], low[1]);
  if constexpr (kDigits == 3) {
    out[2] = _mm512_unpacklo_epi64(_mm512_unpackhi_epi32(words[0], words[1]),
                                   _mm512_unpackhi_epi32(words[2], words[3]));
  }
  // Now [channel / 4][j][channel % 4]. A lane of tig takes two channels of lanes tig / 2 and 2
  // more.
  const __m512i by_tig =
      _mm512_set_epi16(31, 29, 27, 25, 15, 13, 11, 9, 30, 28, 26, 24, 14, 12, 10, 8, 23, 21, 19, 17,
                       7, 5, 3, 1, 22, 20, 18, 16, 6, 4, 2, 0);
  const __m512i in_word =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
#pragma GCC unroll 3
  for (int digit = 0; digit < kDigits; ++digit) {
    out[digit] = _mm512_shuffle_epi8(_mm512_permutexvar_epi16(by_tig, out[digit]), in_word);
  }
}

template <int kDigits, int kGroups>
XGEMM_TARGET_VNNI void arrange(const w4::Layout& layout, const float* values, float scale, int slot,
                               DigitBlock& block) {
  constexpr int kVectors = 2 * kWords / kGroups;  // of a group
  const __m512 scales = _mm512_set1_ps(scale);
  const __m512i middle = _mm512_set1_epi32(kDigits == 3 ? 0x808080 : 0x8080);
  const int64_t rows = block.rows;
  float total = 0.0f;
  for (int64_t unit = 0; unit < layout.units(); ++unit, values += w4::kUnitK) {
    uint8_t* x = block.x + (unit * rows + slot) * kDigits * w4::kUnitK;
    float value[kGroups], inverse[kGroups];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const Power power(largest_magnitude(values + g * kVectors * 16, kVectors, scales), kDigits);
      value[g] = power.value;
      inverse[g] = power.inverse * scale;
    }
    __m512i sums[kGroups] = {};
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m512i q[kWords];
#pragma GCC unroll 4
      for (int j = 0; j < kWords; ++j) {
        const int vector = half * kWords + j, g = vector / kVectors;
        const __m512 v = _mm512_loadu_ps(values + 16 * vector);
        q[j] = _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverse[g])));
        sums[g] = _mm512_add_epi32(sums[g], q[j]);
        q[j] = _mm512_add_epi32(q[j], middle);
      }
      __m512i digits[kDigits];
      gather_digits<kDigits>(q, digits);
#pragma GCC unroll 3
      for (int digit = 0; digit < kDigits; ++digit) {
        _mm512_storeu_si512(x + digit * w4::kUnitK + half * kHalfK,
                            _mm512_xor_si512(digits[digit], _mm512_set1_epi8(-128)));
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const float sum = static_cast<float>(_mm512_reduce_add_epi32(sums[g]));
      const int64_t place = (unit * kGroups + g) * rows + slot;
      block.power[place] = value[g];
      block.sums[place] = sum;
      total += sum * value[g];
    }
  }
  block.total[slot] = total;
}

template <int kDigits>
void arrange(const w4::Layout& layout, const float* values, float scale, int slot,
             DigitBlock& block) {
  switch (digit_groups(layout)) {
    case 1:
      return arrange<kDigits, 1>(layout, values, scale, slot, block);
    case 2:
      return arrange<kDigits, 2>(layout, values, scale, slot, block);
    default:
      return arrange<kDigits, 4>(layout, values, scale, slot, block);
  }
}

}  // namespace

XGEMM_TARGET_VNNI bool has_outlier_avx512(const float* values, int64_t count, int64_t size,
                                          float spread) {
  const __m512 share = _mm512_set1_ps(1.0f / static_cast<float>(size));
  for (int64_t first = 0; first < count; first += size) {
    __m512 largest = _mm512_setzero_ps(), mean = _mm512_setzero_ps();
    for (int64_t i = first; i < first + size; i += 16) {
      const __m512 magnitude = _mm512_abs_ps(_mm512_loadu_ps(values + i));
      largest = _mm512_max_ps(largest, magnitude);
      mean = _mm512_fmadd_ps(magnitude, share, mean);
    }
    const float most = _mm512_reduce_max_ps(largest);
    const float others = _mm512_reduce_add_ps(mean) - most / static_cast<float>(size);
    if (most > spread * others && others > 0.0f) return true;
  }
  return false;
}

void arrange_digits_avx512(const w4::Layout& layout, const float* values, float scale, int slot,
                           DigitBlock& block) {
  block.digits == 3 ? arrange<3>(layout, values, scale, slot, block)
                    : arrange<2>(layout, values, scale, slot, block);
}

}  // namespace xgemm::cpu::w4a16
