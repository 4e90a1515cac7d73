// AVX-512 building blocks: vectors of 16 floats from fp32, fp16 and bf16, with masked ends.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/avx2.h"

namespace xgemm::cpu::avx512 {

using avx2::Element;

// The first `count` of 16 lanes; all of them from 16 on.
XGEMM_INLINE_AVX512 __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? static_cast<__mmask16>(0xffff)
                     : static_cast<__mmask16>((uint32_t{1} << count) - 1);
}

template <DType kType>
XGEMM_INLINE_AVX512 __m512 widen(__m256i bits) {
  if constexpr (kType == DType::kF16) return _mm512_cvtph_ps(bits);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

template <DType kType>
XGEMM_INLINE_AVX512 __m512 load16(const typename Element<kType>::Type* x) {
  if constexpr (kType == DType::kF32) {
    return _mm512_loadu_ps(x);
  } else {
    return widen<kType>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
}

// The first `count` < 16 elements, the rest 0; nothing beyond them is read.
template <DType kType>
XGEMM_INLINE_AVX512 __m512 load_some(const typename Element<kType>::Type* x, int64_t count) {
  const __mmask16 mask = first_lanes(count);
  if constexpr (kType == DType::kF32) {
    return _mm512_maskz_loadu_ps(mask, x);
  } else {
    return widen<kType>(_mm256_maskz_loadu_epi16(mask, x));
  }
}

XGEMM_INLINE_AVX512 __m256 add_halves(__m512 x) {
  // The masked form, all lanes kept: gcc 12 warns of the plain one's undefined operand.
  const __m512d pairs = _mm512_castps_pd(x);
  return _mm256_add_ps(_mm512_castps512_ps256(x),
                       _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xff, pairs, 1)));
}

// x[r][c] -> x[c][r]
XGEMM_INLINE_AVX512 void transpose16(__m512 x[16]) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    x[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    x[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    x[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  // x[4 i + j], 128 bits at c: columns 4 c + j of rows 4 i ... 4 i + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm512_shuffle_f32x4(x[j], x[4 + j], 0x88);
    t[4 + j] = _mm512_shuffle_f32x4(x[j], x[4 + j], 0xdd);
    t[8 + j] = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0x88);
    t[12 + j] = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0xdd);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    x[j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0x88);
    x[4 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0x88);
    x[8 + j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0xdd);
    x[12 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0xdd);
  }
}

}  // namespace xgemm::cpu::avx512
