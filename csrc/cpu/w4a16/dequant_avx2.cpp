// Half a strip to fp32 with AVX2: a nibble is masked in place, converted, and its power of two goes
// into the scale, so that 8 weights cost and + convert + fma + store.
#include <immintrin.h>

#include <bit>

#include "cpu/w4a16/dequant.h"
#include "cpu/w4a16/scales_avx2.h"

namespace xgemm::cpu::w4a16 {
namespace {

// scale and -zero * scale of 16 columns (low and high 8) for one group.
struct GroupAffine {
  __m256 scale[2], offset[2];
};

// Where a half strip's codes and its first group's parameters lie; a group of 32 has the next 16
// scales. One look at the layout for all of them: its arithmetic divides.
struct HalfStrip {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;  // null where the format has none
  bool bf16;

  HalfStrip(const W4Weight& weight, int64_t column, int64_t channel)
      : codes(half_codes(weight, column, channel)), zeros(nullptr), bf16(weight.bf16_scales) {
    const w4::Layout& layout = weight.layout;
    int64_t zero_bytes = w4::kRowColumns * w4::kScaleBytes;  // from a scale to its zero point
    if (layout.per_channel()) {
      scales = weight.data + layout.scale_offset(column, 0);
    } else {
      const int64_t in_unit = channel % w4::kUnitK;
      const int64_t group = in_unit / layout.group_size;
      scales = codes - in_unit / kHalfK * kHalfBytes + w4::kStripCodeBytes +
               group * kColumns * w4::kScaleBytes;
      zero_bytes = layout.groups_per_unit() * kColumns * w4::kScaleBytes;
    }
    if (layout.zeros) zeros = scales + zero_bytes;
  }
};

XGEMM_INLINE_AVX2 GroupAffine load_affine(const HalfStrip& half, int group) {
  GroupAffine affine;
  for (int i = 0; i < 2; ++i) {
    const int64_t offset = (group * kColumns + 8 * i) * w4::kScaleBytes;
    affine.scale[i] = load_8_scales(half.scales + offset, half.bf16);
    const __m256 zero = half.zeros != nullptr ? load_8_fp16(half.zeros + offset)
                                              : _mm256_set1_ps(w4::kSymmetricZero);
    // fp16 times fp16 or bf16 is exact in fp32: the fma below rounds once.
    affine.offset[i] = _mm256_fnmadd_ps(zero, affine.scale[i], _mm256_setzero_ps());
  }
  return affine;
}

// E2M1 codes in the low 4 bits of each lane, whatever the bits above them.
XGEMM_INLINE_AVX2 __m256 fp4_values(__m256i codes) {
  const __m256 magnitudes = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kFp4Magnitudes), codes);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(8)), 28);
  return _mm256_xor_ps(magnitudes, _mm256_castsi256_ps(sign));
}

// The words of one tig: words[j] holds those of lanes gid = 0 .. 7 for the j-th 16 channels.
XGEMM_INLINE_AVX2 void load_words(const uint8_t* codes, int tig, __m256i words[4]) {
  __m256i rows[4];
  for (int i = 0; i < 4; ++i) {
    const auto* low = reinterpret_cast<const __m128i*>(codes + (i * 4 + tig) * 16);
    const auto* high = reinterpret_cast<const __m128i*>(codes + ((i + 4) * 4 + tig) * 16);
    rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                      _mm_loadu_si128(high), 1);
  }
  const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]);
  const __m256i b = _mm256_unpacklo_epi32(rows[2], rows[3]);
  const __m256i c = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const __m256i d = _mm256_unpackhi_epi32(rows[2], rows[3]);
  words[0] = _mm256_unpacklo_epi64(a, b);
  words[1] = _mm256_unpackhi_epi64(a, b);
  words[2] = _mm256_unpacklo_epi64(c, d);
  words[3] = _mm256_unpackhi_epi64(c, d);
}

// The 16 channels of block j that start at `out`, for the words of one tig.
template <bool kFp4>
XGEMM_INLINE_AVX2 void store_block(__m256i words, int tig, const __m256 scale[2][4],
                                   const __m256 offset[2], float* out, int64_t stride) {
  const __m256i shifted = _mm256_srli_epi32(words, 4);  // columns 8 .. 15: the upper nibbles
  for (int h = 0; h < 4; ++h) {
    float* row = out + (2 * tig + (h & 1 ? 8 : 0) + (h & 2 ? 1 : 0)) * stride;
    if constexpr (kFp4) {
      const __m256 low = fp4_values(_mm256_srli_epi32(words, 8 * h));
      const __m256 high = fp4_values(_mm256_srli_epi32(shifted, 8 * h));
      _mm256_storeu_ps(row, _mm256_mul_ps(low, scale[0][0]));
      _mm256_storeu_ps(row + 8, _mm256_mul_ps(high, scale[1][0]));
      continue;
    }
    const __m256i mask = _mm256_set1_epi32(15 << (8 * h));
    const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(words, mask));
    const __m256 high = _mm256_cvtepi32_ps(_mm256_and_si256(shifted, mask));
    _mm256_storeu_ps(row, _mm256_fmadd_ps(low, scale[0][h], offset[0]));
    _mm256_storeu_ps(row + 8, _mm256_fmadd_ps(high, scale[1][h], offset[1]));
  }
}

// Blocks [first, last) of 16 channels, all of one group.
template <bool kFp4>
XGEMM_INLINE_AVX2 void dequant_blocks(const uint8_t* codes, const GroupAffine& affine, int first,
                                      int last, float* out, int64_t stride) {
  __m256 scale[2][4];
  for (int i = 0; i < 2; ++i) {
    for (int h = 0; h < 4; ++h) {
      scale[i][h] = _mm256_mul_ps(affine.scale[i], _mm256_set1_ps(1.0f / (1 << (8 * h))));
    }
  }
  for (int tig = 0; tig < 4; ++tig) {
    __m256i words[4];
    load_words(codes, tig, words);
    for (int j = first; j < last; ++j) {
      store_block<kFp4>(words[j], tig, scale, affine.offset, out + 16 * j * stride, stride);
    }
  }
}

// A column pair (gid, gid + 8): 64 contiguous bytes hold the 64 channels of both.
template <bool kFp4>
XGEMM_INLINE_AVX2 void store_pair(const uint8_t* codes, int gid, const float* scale,
                                  const float* offset, int first, int last, float* const out[4],
                                  int64_t stride) {
  const auto* lanes = reinterpret_cast<const __m128i*>(codes + gid * 64);
  // Transposed, words[j] holds tig = 0 .. 3 for the j-th 16 channels.
  const __m128i a = _mm_unpacklo_epi32(_mm_loadu_si128(lanes), _mm_loadu_si128(lanes + 1));
  const __m128i b = _mm_unpacklo_epi32(_mm_loadu_si128(lanes + 2), _mm_loadu_si128(lanes + 3));
  const __m128i c = _mm_unpackhi_epi32(_mm_loadu_si128(lanes), _mm_loadu_si128(lanes + 1));
  const __m128i d = _mm_unpackhi_epi32(_mm_loadu_si128(lanes + 2), _mm_loadu_si128(lanes + 3));
  const __m128i words[4] = {_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b),
                            _mm_unpacklo_epi64(c, d), _mm_unpackhi_epi64(c, d)};
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const __m256i mask[2] = {_mm256_set1_epi64x(0x000f0000'0000000f),
                           _mm256_set1_epi64x(0x0f000000'00000f00)};
  // Even lanes keep the even channel's nibble, odd lanes the odd one's, 16 bits above it.
  const __m256 power[2] = {
      _mm256_castpd_ps(_mm256_set1_pd(std::bit_cast<double>(0x37800000'3f800000))),
      _mm256_castpd_ps(_mm256_set1_pd(std::bit_cast<double>(0x33800000'3b800000)))};
  const __m256i shift[2] = {_mm256_set1_epi64x(16ll << 32), _mm256_set1_epi64x((24ll << 32) + 8)};
  for (int r = 0; r < 2; ++r) {
    const int column = gid + 8 * r;
    const __m256 column_offset = _mm256_broadcast_ss(offset + column);
    for (int j = first; j < last; ++j) {
      const __m128i shifted = _mm_srli_epi32(words[j], 4 * r);
      const __m256i pairs = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(shifted), twice);
      for (int up = 0; up < 2; ++up) {
        float* to = out[j] + column * stride + 8 * up;
        if constexpr (kFp4) {
          const __m256 value = fp4_values(_mm256_srlv_epi32(pairs, shift[up]));
          _mm256_storeu_ps(to, _mm256_mul_ps(value, _mm256_broadcast_ss(scale + column)));
          continue;
        }
        const __m256 factor = _mm256_mul_ps(_mm256_broadcast_ss(scale + column), power[up]);
        const __m256 code = _mm256_cvtepi32_ps(_mm256_and_si256(pairs, mask[up]));
        _mm256_storeu_ps(to, _mm256_fmadd_ps(code, factor, column_offset));
      }
    }
  }
}

}  // namespace

XGEMM_TARGET_AVX2 void dequant_half_avx2(const W4Weight& weight, int64_t column, int64_t channel,
                                         float* out, int64_t stride) {
  const HalfStrip half(weight, column, channel);
  const GroupAffine affine = load_affine(half, 0);
  if (weight.layout.group_size != 32) {
    dequant_blocks<false>(half.codes, affine, 0, 4, out, stride);
    return;
  }
  const auto blocks = weight.fp4 ? dequant_blocks<true> : dequant_blocks<false>;
  blocks(half.codes, affine, 0, 2, out, stride);
  blocks(half.codes, load_affine(half, 1), 2, 4, out, stride);
}

XGEMM_TARGET_AVX2 void dequant_half_transposed_avx2(const W4Weight& weight, int64_t column,
                                                    int64_t channel, float* const out[4],
                                                    int64_t stride) {
  const HalfStrip half(weight, column, channel);
  const int groups = weight.layout.group_size == 32 ? 2 : 1;
  for (int g = 0; g < groups; ++g) {
    const GroupAffine affine = load_affine(half, g);
    alignas(32) float scale[16], offset[16];
    for (int i = 0; i < 2; ++i) {
      _mm256_store_ps(scale + 8 * i, affine.scale[i]);
      _mm256_store_ps(offset + 8 * i, affine.offset[i]);
    }
    const auto store = weight.fp4 ? store_pair<true> : store_pair<false>;
    for (int gid = 0; gid < 8; ++gid) {
      store(half.codes, gid, scale, offset, g * 4 / groups, (g + 1) * 4 / groups, out, stride);
    }
  }
}

}  // namespace xgemm::cpu::w4a16
