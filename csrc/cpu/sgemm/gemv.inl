// Few rows of A: dot products along k, and rows of B added up along n. Included once for each ISA,
// which has defined Vec (kLanes floats) and what it does: zero, splat, load, load_some, store,
// multiply_add and sum_each, and tile_columns.

// A block of B of this size stays in the L1 cache while all rows of A pass over it. The columns are
// a multiple of every tile's.
constexpr int64_t kDotBlock = 512, kDotColumns = 12;

// kRows x kCols dot products over k. The order of a sum does not depend on the tile's shape, so
// that a column gives the same bits wherever a thread's columns begin. Every line of B that is read
// is fetched `ahead` elements further on.
template <int kRows, int kCols, DType kType>
XGEMM_GEMV_TARGET void dot_tile(int64_t k, const float* a, int64_t lda,
                                const typename Element<kType>::Type* b, int64_t ldb, float* sums,
                                int64_t lds, bool accumulate, int64_t ahead) {
  Vec acc[kRows][8];  // only the first kCols of a row are computed
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) acc[i][j] = zero();
  }
  const int64_t whole = k / kLanes * kLanes;
  for (int64_t p = 0; p < whole; p += kLanes) {
    Vec rows[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) rows[i] = load<DType::kF32>(a + i * lda + p);
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      const auto* from = b + j * ldb + p;
      _mm_prefetch(reinterpret_cast<const char*>(from + ahead), _MM_HINT_T0);
      const Vec column = load<kType>(from);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) acc[i][j] = multiply_add(rows[i], column, acc[i][j]);
    }
  }
  if (whole < k) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      const Vec column = load_some<kType>(b + j * ldb + whole, k - whole);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const Vec row = load_some<DType::kF32>(a + i * lda + whole, k - whole);
        acc[i][j] = multiply_add(row, column, acc[i][j]);
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
XGEMM_GEMV_TARGET void dot_rows(int64_t cols, int64_t k, const float* a, int64_t lda,
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
XGEMM_GEMV_TARGET void add_steps(int64_t cols, const float* a, int64_t lda,
                                 const typename Element<kType>::Type* b, int64_t ldb, float* sums,
                                 int64_t lds) {
  Vec factors[kRows][kSteps];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int q = 0; q < kSteps; ++q) factors[i][q] = splat(a + i * lda + q);
  }
  for (int64_t j = 0; j < cols; j += kLanes) {
    const int64_t count = cols - j;
    Vec acc[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) acc[i] = load<DType::kF32>(sums + i * lds + j);
#pragma GCC unroll 8
    for (int q = 0; q < kSteps; ++q) {
      const auto* from = b + q * ldb + j;
      const Vec row = count >= kLanes ? load<kType>(from) : load_some<kType>(from, count);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) acc[i] = multiply_add(factors[i][q], row, acc[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) store(sums + i * lds + j, acc[i]);
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
