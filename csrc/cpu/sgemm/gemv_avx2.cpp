// Few rows of A with AVX2: dot products along k, and rows of B added up along n.
#include <algorithm>

#include "cpu/isa/avx2.h"
#include "cpu/sgemm/kernels_avx2.h"

namespace xgemm::cpu::dense {
namespace {

using avx2::Element;
using avx2::load8;
using avx2::load_some;

// A block of B of this size stays in the L1 cache while all rows of A pass over it. The columns are
// a multiple of every tile's.
constexpr int64_t kDotBlock = 512, kDotColumns = 12;

// The sums of 4 vectors.
XGEMM_INLINE_AVX2 __m128 sum_each(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

// Columns of B that a tile of `rows` rows takes: as many as registers allow, since many columns at
// once are many streams from memory, which one core needs to fill its bandwidth.
constexpr int tile_columns(int rows) { return rows == 1 ? 8 : rows == 2 ? 6 : rows == 3 ? 4 : 3; }

// kRows x kCols dot products over k. The order of a sum does not depend on the tile's shape, so
// that a column gives the same bits wherever a thread's columns begin. Every line of B that is read
// is fetched `ahead` elements further on.
template <int kRows, int kCols, DType kType>
XGEMM_TARGET_AVX2 void dot_tile(int64_t k, const float* a, int64_t lda,
                                const typename Element<kType>::Type* b, int64_t ldb, float* sums,
                                int64_t lds, bool accumulate, int64_t ahead) {
  __m256 acc[kRows][8];  // only the first kCols of a row are computed
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) acc[i][j] = _mm256_setzero_ps();
  }
  const int64_t whole = k / 8 * 8;
  for (int64_t p = 0; p < whole; p += 8) {
    __m256 rows[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) rows[i] = _mm256_loadu_ps(a + i * lda + p);
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      const auto* from = b + j * ldb + p;
      _mm_prefetch(reinterpret_cast<const char*>(from + ahead), _MM_HINT_T0);
      const __m256 column = load8<kType>(from);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) acc[i][j] = _mm256_fmadd_ps(rows[i], column, acc[i][j]);
    }
  }
  if (whole < k) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      const __m256 column = load_some<kType>(b + j * ldb + whole, k - whole);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const __m256 row = load_some<DType::kF32>(a + i * lda + whole, k - whole);
        acc[i][j] = _mm256_fmadd_ps(row, column, acc[i][j]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    alignas(32) float dots[8];
    _mm_store_ps(dots, sum_each(acc[i][0], acc[i][1], acc[i][2], acc[i][3]));
    if (kCols > 4) _mm_store_ps(dots + 4, sum_each(acc[i][4], acc[i][5], acc[i][6], acc[i][7]));
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      float* to = sums + i * lds + j;
      *to = accumulate ? *to + dots[j] : dots[j];
    }
  }
}

// Up to 4 rows of A over `cols` columns.
template <int kRows, DType kType>
XGEMM_TARGET_AVX2 void dot_rows(int64_t cols, int64_t k, const float* a, int64_t lda,
                                const typename Element<kType>::Type* b, int64_t ldb, float* sums,
                                int64_t lds, bool accumulate, int64_t ahead) {
  constexpr int kCols = tile_columns(kRows);
  int64_t j = 0;
  for (; j + kCols <= cols; j += kCols) {
    dot_tile<kRows, kCols, kType>(k, a, lda, b + j * ldb, ldb, sums + j, lds, accumulate, ahead);
  }
  for (; kRows == 1 && j + 4 <= cols; j += 4) {
    dot_tile<kRows, 4, kType>(k, a, lda, b + j * ldb, ldb, sums + j, lds, accumulate, ahead);
  }
  for (; j < cols; ++j) {
    dot_tile<kRows, 1, kType>(k, a, lda, b + j * ldb, ldb, sums + j, lds, accumulate, ahead);
  }
}

template <DType kType>
void dot_block(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
               const typename Element<kType>::Type* b, int64_t ldb, float* sums, int64_t lds,
               bool accumulate, int64_t ahead) {
  switch (rows) {
    case 1:
      return dot_rows<1, kType>(cols, k, a, lda, b, ldb, sums, lds, accumulate, ahead);
    case 2:
      return dot_rows<2, kType>(cols, k, a, lda, b, ldb, sums, lds, accumulate, ahead);
    case 3:
      return dot_rows<3, kType>(cols, k, a, lda, b, ldb, sums, lds, accumulate, ahead);
    default:
      return dot_rows<4, kType>(cols, k, a, lda, b, ldb, sums, lds, accumulate, ahead);
  }
}

template <DType kType>
void dot_columns(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda, const void* b,
                 int64_t ldb, float* sums, int64_t lds) {
  const auto* columns = static_cast<const typename Element<kType>::Type*>(b);
  const int64_t groups = (rows + 3) / 4;
  // One group of rows reads B once anyway: no blocks of k.
  const int64_t block = groups == 1 ? k : kDotBlock;
  const int64_t wide = groups == 1 ? cols : kDotColumns;
  // What the first group of rows prefetches: the next tile's columns, or the next block of k.
  const int64_t ahead = groups == 1 ? tile_columns(static_cast<int>(rows)) * ldb : kDotBlock;
  for (int64_t j = 0; j < cols; j += wide) {
    const int64_t some = std::min(wide, cols - j);
    for (int64_t p = 0; p < k; p += block) {
      const int64_t kc = std::min(block, k - p);
      for (int64_t group = 0; group < groups; ++group) {
        const Range part = split_range(rows, groups, group);
        dot_block<kType>(part.end - part.begin, some, kc, a + part.begin * lda + p, lda,
                         columns + j * ldb + p, ldb, sums + part.begin * lds + j, lds, p > 0,
                         group == 0 ? ahead : 0);
      }
    }
  }
}

// sums[i] += sum over q < kSteps of A[i, q] * B[q, :] for kRows rows.
template <int kRows, int kSteps, DType kType>
XGEMM_TARGET_AVX2 void add_steps(int64_t cols, const float* a, int64_t lda,
                                 const typename Element<kType>::Type* b, int64_t ldb, float* sums,
                                 int64_t lds) {
  __m256 factors[kRows][kSteps];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int q = 0; q < kSteps; ++q) factors[i][q] = _mm256_broadcast_ss(a + i * lda + q);
  }
  for (int64_t j = 0; j < cols; j += 8) {
    const int64_t count = cols - j;
    __m256 acc[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) acc[i] = _mm256_loadu_ps(sums + i * lds + j);
#pragma GCC unroll 8
    for (int q = 0; q < kSteps; ++q) {
      const auto* from = b + q * ldb + j;
      const __m256 row = count >= 8 ? load8<kType>(from) : load_some<kType>(from, count);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) acc[i] = _mm256_fmadd_ps(factors[i][q], row, acc[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) _mm256_storeu_ps(sums + i * lds + j, acc[i]);
  }
}

template <int kRows, DType kType>
void add_rows(int64_t cols, int64_t k, const float* a, int64_t lda, const void* b, int64_t ldb,
              float* sums, int64_t lds) {
  constexpr int kSteps = kRows == 1 ? 8 : kRows == 2 ? 4 : 2;
  const auto* rows = static_cast<const typename Element<kType>::Type*>(b);
  int64_t p = 0;
  for (; p + kSteps <= k; p += kSteps) {
    add_steps<kRows, kSteps, kType>(cols, a + p, lda, rows + p * ldb, ldb, sums, lds);
  }
  for (; p < k; ++p) {
    add_steps<kRows, 1, kType>(cols, a + p, lda, rows + p * ldb, ldb, sums, lds);
  }
}

template <DType kType>
void add_groups(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda, const void* b,
                int64_t ldb, float* sums, int64_t lds) {
  switch (rows) {
    case 1:
      return add_rows<1, kType>(cols, k, a, lda, b, ldb, sums, lds);
    case 2:
      return add_rows<2, kType>(cols, k, a, lda, b, ldb, sums, lds);
    case 3:
      return add_rows<3, kType>(cols, k, a, lda, b, ldb, sums, lds);
    default:
      return add_rows<4, kType>(cols, k, a, lda, b, ldb, sums, lds);
  }
}

}  // namespace

void dot_columns_avx2(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                      const void* b, DType b_dtype, int64_t ldb, float* sums, int64_t lds) {
  switch (b_dtype) {
    case DType::kF16:
      return dot_columns<DType::kF16>(rows, cols, k, a, lda, b, ldb, sums, lds);
    case DType::kBF16:
      return dot_columns<DType::kBF16>(rows, cols, k, a, lda, b, ldb, sums, lds);
    default:
      return dot_columns<DType::kF32>(rows, cols, k, a, lda, b, ldb, sums, lds);
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
