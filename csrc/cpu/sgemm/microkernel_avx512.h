// The register tile of AVX-512 over packed panels: kRows rows times kVectors * 16 columns.
#pragma once

#include "cpu/isa/avx512.h"
#include "cpu/sgemm/kernels.h"

namespace xgemm::cpu::dense {

// Steps of k between two prefetches of `ahead`, and of the rows of `out`.
constexpr int kAheadSteps = 2, kOutSteps = 16;
static_assert(kOutSteps == kAheadSteps * kAheadRows, "a line of every row in kOutSteps steps");

// To `out`, or added to it: all of it but the last vector of each row, of which the lanes of
// `last`.
template <int kRows, int kVectors>
XGEMM_TARGET_AVX512 __attribute__((always_inline)) inline void store_tile(
    const __m512 (&sums)[kRows][kVectors], float* out, int64_t ldo, bool accumulate,
    __mmask16 last) {
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    float* to = out + i * ldo;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 mask = v + 1 == kVectors ? last : static_cast<__mmask16>(0xffff);
      __m512 sum = sums[i][v];
      if (accumulate) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to + 16 * v), sum);
      _mm512_mask_storeu_ps(to + 16 * v, mask, sum);
    }
  }
}

// As PackedKernel. The last vector of `out` is masked: no column from `cols` on is read or written.
template <int kRows, int kVectors>
XGEMM_TARGET_AVX512 void packed_avx512(int64_t kc, const float* a, int64_t a_step, const float* b,
                                       float* out, int64_t ldo, bool accumulate, int64_t cols,
                                       Ahead ahead) {
  constexpr int kWidth = 32;  // of the panel of B
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_setzero_ps();
  }
  // Inlined below, where `q` is a constant.
  const auto multiply_step =
      [&](int q) __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx2,fma,f16c"))) {
        __m512 columns[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          columns[v] = _mm512_loadu_ps(b + kWidth * q + 16 * v);
          // Pinned in a register: gcc would load it again as the memory operand of each FMA.
          asm("" : "+v"(columns[v]));
        }
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i) {
          __m512 factor = _mm512_set1_ps(a[i]);
          asm("" : "+v"(factor));
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            sums[i][v] = _mm512_fmadd_ps(factor, columns[v], sums[i][v]);
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
  store_tile(sums, out, ldo, accumulate, avx512::first_lanes(cols - 16 * (kVectors - 1)));
}

}  // namespace xgemm::cpu::dense
