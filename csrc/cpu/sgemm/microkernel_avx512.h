// The register tile of AVX-512 over packed panels: kRows rows of columns.
#pragma once

#include "cpu/isa/avx512.h"
#include "cpu/sgemm/kernels.h"

namespace xgemm::cpu::dense {

// Steps of k between two prefetches of `ahead`, and of the rows of `out`.
constexpr int kAheadSteps = 2, kOutSteps = 16;
static_assert(kOutSteps == kAheadSteps * kAheadRows, "a line of every row in kOutSteps steps");

// The columns of a tile: vectors of 16, or one of 8, which costs half as much where two FMAs of 8
// lanes take the time of one of 16. Of the last vector only the lanes of a mask count.
template <int kCount>
struct Columns16 {
  using Vec = __m512;
  using Mask = __mmask16;
  static constexpr int kVectors = kCount, kLanes = 16;
  static XGEMM_INLINE_AVX512 Vec zero() { return _mm512_setzero_ps(); }
  static XGEMM_INLINE_AVX512 Vec splat(const float* x) { return _mm512_set1_ps(*x); }
  static XGEMM_INLINE_AVX512 Vec load(const float* x) { return _mm512_loadu_ps(x); }
  static XGEMM_INLINE_AVX512 Vec load(Mask mask, const float* x) {
    return _mm512_maskz_loadu_ps(mask, x);
  }
  static XGEMM_INLINE_AVX512 void store(float* to, Mask mask, Vec x) {
    _mm512_mask_storeu_ps(to, mask, x);
  }
  static XGEMM_INLINE_AVX512 Vec add(Vec x, Vec y) { return _mm512_add_ps(x, y); }
  static XGEMM_INLINE_AVX512 Vec multiply_add(Vec x, Vec y, Vec z) {
    return _mm512_fmadd_ps(x, y, z);
  }
};
struct Columns8 {
  using Vec = __m256;
  using Mask = __mmask8;
  static constexpr int kVectors = 1, kLanes = 8;
  static XGEMM_INLINE_AVX512 Vec zero() { return _mm256_setzero_ps(); }
  static XGEMM_INLINE_AVX512 Vec splat(const float* x) { return _mm256_broadcast_ss(x); }
  static XGEMM_INLINE_AVX512 Vec load(const float* x) { return _mm256_loadu_ps(x); }
  static XGEMM_INLINE_AVX512 Vec load(Mask mask, const float* x) {
    return _mm256_maskz_loadu_ps(mask, x);
  }
  static XGEMM_INLINE_AVX512 void store(float* to, Mask mask, Vec x) {
    _mm256_mask_storeu_ps(to, mask, x);
  }
  static XGEMM_INLINE_AVX512 Vec add(Vec x, Vec y) { return _mm256_add_ps(x, y); }
  static XGEMM_INLINE_AVX512 Vec multiply_add(Vec x, Vec y, Vec z) {
    return _mm256_fmadd_ps(x, y, z);
  }
};

// The lanes of the last vector of `cols` columns.
template <typename Columns>
XGEMM_INLINE_AVX512 typename Columns::Mask last_lanes(int64_t cols) {
  return static_cast<typename Columns::Mask>(
      avx512::first_lanes(cols - Columns::kLanes * (Columns::kVectors - 1)));
}

// To `out`, or added to it: all of it but the last vector of each row, of which the lanes of
// `last`.
template <int kRows, typename Columns>
XGEMM_INLINE_AVX512 void store_tile(const typename Columns::Vec (&sums)[kRows][Columns::kVectors],
                                    float* out, int64_t ldo, bool accumulate,
                                    typename Columns::Mask last) {
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    float* to = out + i * ldo;
#pragma GCC unroll 2
    for (int v = 0; v < Columns::kVectors; ++v) {
      using Mask = typename Columns::Mask;
      const Mask mask = v + 1 == Columns::kVectors ? last : static_cast<Mask>(-1);
      typename Columns::Vec sum = sums[i][v];
      if (accumulate) sum = Columns::add(Columns::load(mask, to + Columns::kLanes * v), sum);
      Columns::store(to + Columns::kLanes * v, mask, sum);
    }
  }
}

// As PackedKernel. The last vector of `out` is masked: no column from `cols` on is read or written.
template <int kRows, typename Columns>
XGEMM_TARGET_AVX512 void packed_avx512(int64_t kc, const float* a, int64_t a_step, const float* b,
                                       float* out, int64_t ldo, bool accumulate, int64_t cols,
                                       Ahead ahead) {
  using Vec = typename Columns::Vec;
  constexpr int kVectors = Columns::kVectors, kWidth = 32;  // of the panel of B
  Vec sums[kRows][kVectors];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Columns::zero();
  }
  // Inlined below, where `q` is a constant.
  const auto multiply_step =
      [&](int q) __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx2,fma,f16c"))) {
        Vec columns[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          columns[v] = Columns::load(b + kWidth * q + Columns::kLanes * v);
          // Pinned in a register: gcc would load it again as the memory operand of each FMA.
          asm("" : "+v"(columns[v]));
        }
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i) {
          Vec factor = Columns::splat(a + i);
          asm("" : "+v"(factor));
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            sums[i][v] = Columns::multiply_add(factor, columns[v], sums[i][v]);
          }
        }
        a += a_step;
        asm("" : "+r"(a));
      };
  // `out` is fetched while the products run, a row at a time: all at once would take up the buffers
  // through which the panels come from the L2 cache.
  const float* out_row = out;
  int64_t out_rows = kRows;
  int64_t p = 0;
  for (; p + kOutSteps <= kc; p += kOutSteps) {
    if (out_rows > 0) {
      _mm_prefetch(reinterpret_cast<const char*>(out_row), _MM_HINT_T0);
      if constexpr (kVectors == 2) {
        _mm_prefetch(reinterpret_cast<const char*>(out_row + 16), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(out_row + 31), _MM_HINT_T0);  // a third line
      }
      out_row += ldo;
      --out_rows;
    }
    const float* line = ahead.data + p;
#pragma GCC unroll 1
    for (int r = 0; r < kAheadRows; r += 2) {
      _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
      multiply_step(0);
      multiply_step(1);
      line += ahead.stride;
      _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
      multiply_step(2);
      multiply_step(3);
      line += ahead.stride;
      b += 4 * kWidth;
      asm("" : "+r"(b));
    }
  }
  for (; p < kc; ++p) {
    multiply_step(0);
    b += kWidth;
  }
  store_tile<kRows, Columns>(sums, out, ldo, accumulate, last_lanes<Columns>(cols));
}

}  // namespace xgemm::cpu::dense
