// The register tile of AVX2: kRows rows times kVectors * 8 columns.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/isa.h"

namespace xgemm::cpu::dense {

// kStepA, kStepB: a_col and ldb where they are known (packed panels, then a_row is 1), else 0.
template <int kRows, int kVectors, int kStepA = 0, int kStepB = 0>
XGEMM_TARGET_AVX2 void micro_avx2(int64_t kc, const float* a, int64_t a_row, int64_t a_col,
                                  const float* b, int64_t ldb, float* out, int64_t ldo,
                                  bool accumulate, int64_t /*cols*/) {
  const int64_t step_a = kStepA != 0 ? kStepA : a_col, step_b = kStepB != 0 ? kStepB : ldb;
  const int64_t row = kStepA != 0 ? 1 : a_row;
  __m256 sums[kRows][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(out + i * ldo), _MM_HINT_T0);
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
      const __m256 factor = _mm256_broadcast_ss(a + i * row);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = _mm256_fmadd_ps(factor, columns[v], sums[i][v]);
      }
    }
    a += step_a;
    b += step_b;
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

}  // namespace xgemm::cpu::dense
