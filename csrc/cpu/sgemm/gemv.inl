// Few rows of A: dot products along k, and rows of B added up along n. Included once for each ISA,
// which has defined Vec (kLanes floats) and what it does: zero, splat, load, load_some, store,
// multiply_add and store_sums, and tile_columns and kDotColumns.

// Columns that a tile fetches to the L2 cache while it runs: `count` of them, ldb apart, from
// `data` on. They are used soon.
template <DType kType>
struct Fetch {
  const typename Element<kType>::Type* data;
  int count;
};

// kRows x kCols dot products over k. The order of a sum does not depend on the tile's shape, so
// that a column gives the same bits wherever a thread's columns begin.
template <int kRows, int kCols, bool kAhead, DType kType>
XGEMM_GEMV_TARGET void dot_tile(int64_t k, const float* a, int64_t lda,
                                const typename Element<kType>::Type* b, int64_t ldb, float* sums,
                                int64_t lds, Fetch<kType> fetch) {
  Vec acc[kRows][kCols];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) acc[i][j] = zero();
  }
  const int64_t whole = k / kLanes * kLanes;
  for (int64_t p = 0; p < whole; p += kLanes) {
    if constexpr (kAhead) {
      const auto* line = fetch.data + p;
#pragma GCC unroll 1
      for (int f = 0; f < fetch.count; ++f, line += ldb) {
        _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
      }
    }
    Vec rows[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) rows[i] = load<DType::kF32>(a + i * lda + p);
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      Vec column = load<kType>(b + j * ldb + p);
      // Pinned in a register: gcc would load it again as the memory operand of each FMA.
      if constexpr (kRows > 1) asm("" : "+v"(column));
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
  store_sums<kRows, kCols>(acc, sums, lds);
}

// Up to 4 rows of A over `cols` columns, of which a tile fetches what its own columns are
// for `fetch`.
template <int kRows, DType kType>
XGEMM_GEMV_TARGET void dot_rows(int64_t cols, int64_t k, const float* a, int64_t lda,
                                const typename Element<kType>::Type* b, int64_t ldb, float* sums,
                                int64_t lds, Fetch<kType> fetch) {
  constexpr int kCols = tile_columns(kRows);
  int64_t j = 0;
  for (; fetch.count > 0 && j + kCols <= cols; j += kCols, fetch.data += kCols * ldb) {
    dot_tile<kRows, kCols, true, kType>(k, a, lda, b + j * ldb, ldb, sums + j, lds, fetch);
  }
  for (; j + kCols <= cols; j += kCols) {
    dot_tile<kRows, kCols, false, kType>(k, a, lda, b + j * ldb, ldb, sums + j, lds, {});
  }
  if constexpr (kRows == 1) {
    for (; j + 4 <= cols; j += 4) {
      dot_tile<kRows, 4, false, kType>(k, a, lda, b + j * ldb, ldb, sums + j, lds, {});
    }
  }
  for (; j < cols; ++j) {
    dot_tile<kRows, 1, false, kType>(k, a, lda, b + j * ldb, ldb, sums + j, lds, {});
  }
}

template <DType kType>
void dot_group(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
               const typename Element<kType>::Type* b, int64_t ldb, float* sums, int64_t lds,
               Fetch<kType> fetch) {
  switch (rows) {
    case 1:
      return dot_rows<1, kType>(cols, k, a, lda, b, ldb, sums, lds, fetch);
    case 2:
      return dot_rows<2, kType>(cols, k, a, lda, b, ldb, sums, lds, fetch);
    case 3:
      return dot_rows<3, kType>(cols, k, a, lda, b, ldb, sums, lds, fetch);
    default:
      return dot_rows<4, kType>(cols, k, a, lda, b, ldb, sums, lds, fetch);
  }
}

template <DType kType>
void dot_columns(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda, const void* b,
                 int64_t ldb, bool ahead, float* sums, int64_t lds) {
  const auto* columns = static_cast<const typename Element<kType>::Type*>(b);
  const int64_t groups = (rows + 3) / 4;
  // All rows pass over some columns before the next come; one group of rows has no need to.
  const int64_t wide = groups == 1 ? cols : kDotColumns;
  const int64_t next = groups == 1 ? tile_columns(static_cast<int>(rows)) : kDotColumns;
  for (int64_t j = 0; j < cols; j += wide) {
    const int64_t some = std::min(wide, cols - j);
    int64_t fetched = 0;  // of the next columns; each group has its share
    for (int64_t group = 0; group < groups; ++group) {
      const Range part = split_range(rows, groups, group);
      const int64_t rows_here = part.end - part.begin;
      Fetch<kType> fetch{columns + (j + next + fetched) * ldb, 0};
      if (ahead) {
        // A group's tiles fetch `count` columns each, a tile's width apart.
        const int64_t width = tile_columns(static_cast<int>(rows_here));
        fetch.count = static_cast<int>(std::min((width + groups - 1) / groups, width - fetched));
        fetched += fetch.count;
      }
      dot_group<kType>(rows_here, some, k, a + part.begin * lda, lda, columns + j * ldb, ldb,
                       sums + part.begin * lds + j, lds, fetch);
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
