// AVX2 building blocks: vectors of 8 floats from and to fp32, fp16 and bf16, and the activations.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "common/activation.h"
#include "common/dtype.h"
#include "cpu/isa/isa.h"

namespace xgemm::cpu::avx2 {

template <DType kType>
struct Element {
  using Type = uint16_t;
};
template <>
struct Element<DType::kF32> {
  using Type = float;
};

template <DType kType>
XGEMM_INLINE_AVX2 __m256 load8(const typename Element<kType>::Type* x) {
  if constexpr (kType == DType::kF32) {
    return _mm256_loadu_ps(x);
  } else {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    if constexpr (kType == DType::kF16) return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
}

// The first `count` < 8 elements, the rest 0; nothing beyond them is read.
template <DType kType>
XGEMM_INLINE_AVX2 __m256 load_some(const typename Element<kType>::Type* x, int64_t count) {
  alignas(32) typename Element<kType>::Type padded[8] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = x[i];
  return load8<kType>(padded);
}

XGEMM_INLINE_AVX2 __m128i to_half(__m256 x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// Round to nearest even; a NaN stays a quiet NaN.
XGEMM_INLINE_AVX2 __m128i to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x0040));
  const __m256i words = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

template <DType kType>
XGEMM_INLINE_AVX2 void store8(typename Element<kType>::Type* out, __m256 x) {
  if constexpr (kType == DType::kF32) {
    _mm256_storeu_ps(out, x);
  } else {
    const __m128i bits = kType == DType::kF16 ? to_half(x) : to_bf16(x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bits);
  }
}

template <DType kType>
XGEMM_INLINE_AVX2 void store_some(typename Element<kType>::Type* out, __m256 x, int64_t count) {
  alignas(32) typename Element<kType>::Type padded[8];
  store8<kType>(padded, x);
  for (int64_t i = 0; i < count; ++i) out[i] = padded[i];
}

// exp to about 1 ulp: 2^n times a polynomial of degree 5 on [-ln2 / 2, ln2 / 2] (Cephes). NaN stays
// NaN; beyond the range of a float the result is infinity or 0.
XGEMM_INLINE_AVX2 __m256 exp8(__m256 x) {
  // max and min give their second operand where one is NaN.
  const __m256 low = _mm256_set1_ps(-104.0f), high = _mm256_set1_ps(89.0f);
  const __m256 z = _mm256_min_ps(high, _mm256_max_ps(low, x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(z, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), z);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 y = _mm256_set1_ps(1.9875691500e-4f);
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
  y = _mm256_add_ps(_mm256_fmadd_ps(y, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  // n in [-150, 128] does not fit one exponent: scale by two powers.
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(whole, 1);
  const __m256i second = _mm256_sub_epi32(whole, first);
  const __m256i bias = _mm256_set1_epi32(127);
  y = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23)));
  return _mm256_mul_ps(y,
                       _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23)));
}

// erf to a few ulp: an odd rational function on [-4, 4] (Eigen's coefficients). NaN stays NaN.
XGEMM_INLINE_AVX2 __m256 erf8(__m256 x) {
  const __m256 z = _mm256_min_ps(_mm256_set1_ps(4.0f), _mm256_max_ps(_mm256_set1_ps(-4.0f), x));
  const __m256 s = _mm256_mul_ps(z, z);
  __m256 p = _mm256_set1_ps(-2.72614225801306e-10f);
  p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(2.77068142495902e-08f));
  p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(-2.10102402082508e-06f));
  p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(-5.69250639462346e-05f));
  p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(-7.34990630326855e-04f));
  p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(-2.95459980854025e-03f));
  p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(-1.60960333262415e-02f));
  __m256 q = _mm256_set1_ps(-1.45660718464996e-05f);
  q = _mm256_fmadd_ps(q, s, _mm256_set1_ps(-2.13374055278905e-04f));
  q = _mm256_fmadd_ps(q, s, _mm256_set1_ps(-1.68282697438203e-03f));
  q = _mm256_fmadd_ps(q, s, _mm256_set1_ps(-7.37332916720468e-03f));
  q = _mm256_fmadd_ps(q, s, _mm256_set1_ps(-1.42647390514189e-02f));
  return _mm256_div_ps(_mm256_mul_ps(z, p), q);
}

// x / (1 + exp(-t)): silu for t = x.
XGEMM_INLINE_AVX2 __m256 times_sigmoid(__m256 x, __m256 t) {
  const __m256 e = exp8(_mm256_xor_ps(t, _mm256_set1_ps(-0.0f)));
  return _mm256_div_ps(x, _mm256_add_ps(e, _mm256_set1_ps(1.0f)));
}

XGEMM_INLINE_AVX2 __m256 activate8(Activation activation, __m256 x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return _mm256_max_ps(_mm256_setzero_ps(), x);  // the second operand where x is NaN
    case Activation::kGelu: {
      const __m256 e = erf8(_mm256_mul_ps(x, _mm256_set1_ps(0.70710678118654752f)));
      return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_set1_ps(0.5f)),
                           _mm256_add_ps(e, _mm256_set1_ps(1.0f)));
    }
    case Activation::kGeluTanh: {
      // 0.5 (1 + tanh(u)) is the sigmoid of 2 u.
      const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
      const __m256 u = _mm256_fmadd_ps(cube, _mm256_set1_ps(0.044715f), x);
      return times_sigmoid(x, _mm256_mul_ps(u, _mm256_set1_ps(2.0f * 0.79788456080286536f)));
    }
    case Activation::kSilu:
      return times_sigmoid(x, x);
  }
  return x;
}

}  // namespace xgemm::cpu::avx2
