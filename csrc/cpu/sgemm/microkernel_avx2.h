// The register tile of AVX2: kRows rows times kVectors * 8 columns.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/isa.h"
#include "cpu/sgemm/kernels.h"

namespace xgemm::cpu::dense {

template <int kRows, int kVectors>
XGEMM_INLINE_AVX2 void multiply_avx2(int64_t kc, const float* a, int64_t a_row, int64_t a_col,
                                     const float* b, int64_t ldb, float* out, int64_t ldo,
                                     bool accumulate) {
  __m256 sums[kRows][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(out + i * ldo), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(out + i * ldo + 8 * kVectors - 1), _MM_HINT_T0);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm256_setzero_ps();
  }
#pragma GCC unroll 4
  for (int64_t p = 0; p < kc; ++p) {
    __m256 columns[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = _mm256_loadu_ps(b + 8 * v);
      // Pinned in a register: gcc would load it again as the memory operand of each FMA.
      asm("" : "+x"(columns[v]));
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 factor = _mm256_broadcast_ss(a + i * a_row);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = _mm256_fmadd_ps(factor, columns[v], sums[i][v]);
      }
    }
    a += a_col;
    b += ldb;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    float* to = out + i * ldo;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const __m256 sum = sums[i][v];
      _mm256_storeu_ps(to + 8 * v,
                       accumulate ? _mm256_add_ps(_mm256_loadu_ps(to + 8 * v), sum) : sum);
    }
  }
}

template <int kRows, int kVectors>
XGEMM_TARGET_AVX2 void micro_avx2(int64_t kc, const float* a, int64_t a_row, int64_t a_col,
                                  const float* b, int64_t ldb, float* out, int64_t ldo,
                                  bool accumulate, int64_t /*cols*/) {
  multiply_avx2<kRows, kVectors>(kc, a, a_row, a_col, b, ldb, out, ldo, accumulate);
}

// As PackedKernel. Most panels are as wide as the tile is high.
template <int kRows, int kVectors>
XGEMM_TARGET_AVX2 void packed_avx2(int64_t kc, const float* a, int64_t a_step, const float* b,
                                   float* out, int64_t ldo, bool accumulate, int64_t /*cols*/,
                                   Ahead /*ahead*/) {
  constexpr int64_t kWidth = 16;  // of the panel of B
  if (a_step == kRows) {
    return multiply_avx2<kRows, kVectors>(kc, a, 1, kRows, b, kWidth, out, ldo, accumulate);
  }
  multiply_avx2<kRows, kVectors>(kc, a, 1, a_step, b, kWidth, out, ldo, accumulate);
}

}  // namespace xgemm::cpu::dense
