// Few rows of A with AVX2: dot products along k, and rows of B added up along n.
#include <algorithm>

#include "cpu/isa/avx2.h"
#include "cpu/sgemm/kernels_avx2.h"

#define XGEMM_GEMV_TARGET XGEMM_TARGET_AVX2

namespace xgemm::cpu::dense {
namespace {

using avx2::Element;
using avx2::load_some;
using Vec = __m256;
constexpr int64_t kLanes = 8;

XGEMM_INLINE_AVX2 Vec zero() { return _mm256_setzero_ps(); }
XGEMM_INLINE_AVX2 Vec splat(const float* x) { return _mm256_broadcast_ss(x); }
template <DType kType>
XGEMM_INLINE_AVX2 Vec load(const typename Element<kType>::Type* x) {
  return avx2::load8<kType>(x);
}
XGEMM_INLINE_AVX2 void store(float* out, Vec x) { _mm256_storeu_ps(out, x); }
XGEMM_INLINE_AVX2 Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

// The sums of 4 vectors.
XGEMM_INLINE_AVX2 __m128 sum_each(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

// sums[i * lds + j] = the sum over acc[i][j].
template <int kRows, int kCols>
XGEMM_INLINE_AVX2 void store_sums(const Vec (&acc)[kRows][kCols], float* sums, int64_t lds) {
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    Vec row[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) row[j] = j < kCols ? acc[i][j < kCols ? j : 0] : zero();
    alignas(16) float dots[8];
    _mm_store_ps(dots, sum_each(row[0], row[1], row[2], row[3]));
    if (kCols > 4) _mm_store_ps(dots + 4, sum_each(row[4], row[5], row[6], row[7]));
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) sums[i * lds + j] = dots[j];
  }
}

// Columns of B that a tile of `rows` rows takes: as many as registers allow, since many columns at
// once are many streams from memory, which one core needs to fill its bandwidth.
constexpr int tile_columns(int rows) { return rows == 1 ? 8 : rows == 2 ? 6 : rows == 3 ? 4 : 3; }
constexpr int64_t kDotColumns = 12;  // a multiple of every tile's

#include "cpu/sgemm/gemv.inl"

}  // namespace

void dot_columns_avx2(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                      const void* b, DType b_dtype, int64_t ldb, bool ahead, float* sums,
                      int64_t lds) {
  switch (b_dtype) {
    case DType::kF16:
      return dot_columns<DType::kF16>(rows, cols, k, a, lda, b, ldb, ahead, sums, lds);
    case DType::kBF16:
      return dot_columns<DType::kBF16>(rows, cols, k, a, lda, b, ldb, ahead, sums, lds);
    default:
      return dot_columns<DType::kF32>(rows, cols, k, a, lda, b, ldb, ahead, sums, lds);
  }
}

void add_rows_avx2(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                   const void* b, DType b_dtype, int64_t ldb, float* sums, int64_t lds) {
  switch (b_dtype) {
    case DType::kF16:
      return add_groups<DType::kF16>(rows, cols, k, a, lda, b, ldb, sums, lds);
    case DType::kBF16:
      return add_groups<DType::kBF16>(rows, cols, k, a, lda, b, ldb, sums, lds);
    default:
      return add_groups<DType::kF32>(rows, cols, k, a, lda, b, ldb, sums, lds);
  }
}

}  // namespace xgemm::cpu::dense
