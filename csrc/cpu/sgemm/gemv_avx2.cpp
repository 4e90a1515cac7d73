// Few rows of A with AVX2: dot products along k, and rows of B added up along n.
#include <algorithm>

#include "cpu/isa/avx2.h"
#include "cpu/sgemm/kernels_avx2.h"

namespace xgemm::cpu::dense {
namespace {

using avx2::Element;
using avx2::load8;
using avx2::load_some;

// Columns of B this long stay in the L1 cache while all rows of A pass over them.
constexpr int64_t kDotBlock = 1024;

// kRows x kCols dot products over k, each in kChains sums (so that the latency of one FMA does not
// bound it).
template <int kRows, int kCols, int kChains, DType kType>
XGEMM_TARGET_AVX2 void dot_tile(int64_t k, const float* a, int64_t lda,
                                const typename Element<kType>::Type* b, int64_t ldb, float* sums,
                                int64_t lds, bool accumulate) {
  __m256 acc[kChains][kRows][kCols];
#pragma GCC unroll 8
  for (int u = 0; u < kChains; ++u) {
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) acc[u][i][j] = _mm256_setzero_ps();
    }
  }
  int64_t p = 0;
  for (; p + 8 * kChains <= k; p += 8 * kChains) {
#pragma GCC unroll 8
    for (int u = 0; u < kChains; ++u) {
      __m256 rows[kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) rows[i] = _mm256_loadu_ps(a + i * lda + p + 8 * u);
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) {
        const __m256 column = load8<kType>(b + j * ldb + p + 8 * u);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          acc[u][i][j] = _mm256_fmadd_ps(rows[i], column, acc[u][i][j]);
        }
      }
    }
  }
  for (; p < k; p += 8) {
    const int64_t count = std::min<int64_t>(8, k - p);
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      const auto* from = b + j * ldb + p;
      const __m256 column = count == 8 ? load8<kType>(from) : load_some<kType>(from, count);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const float* row = a + i * lda + p;
        const __m256 x = count == 8 ? _mm256_loadu_ps(row) : load_some<DType::kF32>(row, count);
        acc[0][i][j] = _mm256_fmadd_ps(x, column, acc[0][i][j]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      __m256 sum = acc[0][i][j];
#pragma GCC unroll 8
      for (int u = 1; u < kChains; ++u) sum = _mm256_add_ps(sum, acc[u][i][j]);
      float* to = sums + i * lds + j;
      *to = (accumulate ? *to : 0.0f) + avx2::sum8(sum);
    }
  }
}

// Up to 4 rows of A over `cols` columns.
template <int kRows, DType kType>
XGEMM_TARGET_AVX2 void dot_rows(int64_t cols, int64_t k, const float* a, int64_t lda,
                                const typename Element<kType>::Type* b, int64_t ldb, float* sums,
                                int64_t lds, bool accumulate) {
  constexpr int kCols = kRows == 4 ? 3 : 4, kChains = kRows == 1 ? 2 : 1;
  int64_t j = 0;
  for (; j + kCols <= cols; j += kCols) {
    dot_tile<kRows, kCols, kChains, kType>(k, a, lda, b + j * ldb, ldb, sums + j, lds, accumulate);
  }
  for (; j < cols; ++j) {
    dot_tile<kRows, 1, 2, kType>(k, a, lda, b + j * ldb, ldb, sums + j, lds, accumulate);
  }
}

template <DType kType>
void dot_block(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
               const typename Element<kType>::Type* b, int64_t ldb, float* sums, int64_t lds,
               bool accumulate) {
  switch (rows) {
    case 1:
      return dot_rows<1, kType>(cols, k, a, lda, b, ldb, sums, lds, accumulate);
    case 2:
      return dot_rows<2, kType>(cols, k, a, lda, b, ldb, sums, lds, accumulate);
    case 3:
      return dot_rows<3, kType>(cols, k, a, lda, b, ldb, sums, lds, accumulate);
    default:
      return dot_rows<4, kType>(cols, k, a, lda, b, ldb, sums, lds, accumulate);
  }
}

template <DType kType>
void dot_columns(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda, const void* b,
                 int64_t ldb, float* sums, int64_t lds) {
  const auto* columns = static_cast<const typename Element<kType>::Type*>(b);
  const int64_t groups = (rows + 3) / 4;
  // One group of rows reads B once anyway: no blocks of k.
  const int64_t block = groups == 1 ? k : kDotBlock;
  const int64_t wide = groups == 1 ? cols : 4;
  for (int64_t j = 0; j < cols; j += wide) {
    const int64_t some = std::min(wide, cols - j);
    for (int64_t p = 0; p < k; p += block) {
      const int64_t kc = std::min(block, k - p);
      for (int64_t group = 0; group < groups; ++group) {
        const Range part = split_range(rows, groups, group);
        dot_block<kType>(part.end - part.begin, some, kc, a + part.begin * lda + p, lda,
                         columns + j * ldb + p, ldb, sums + part.begin * lds + j, lds, p > 0);
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
