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

}  // namespace xgemm::cpu::avx512
