// The inner kernels in plain C++, for any CPU.
#include "cpu/sgemm/epilogue.h"
#include "cpu/sgemm/kernels.h"
#include "cpu/sgemm/pack.h"

namespace xgemm::cpu::dense {
namespace {

constexpr Blocking kSizes = blocking_of(Isa::kGeneric);

template <int kRows, int kCols>
void micro(int64_t kc, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb,
           float* out, int64_t ldo, bool accumulate, int64_t /*cols*/) {
  float sums[kRows][kCols] = {};
  for (int64_t p = 0; p < kc; ++p) {
    for (int i = 0; i < kRows; ++i) {
      const float factor = a[i * a_row + p * a_col];
      for (int j = 0; j < kCols; ++j) sums[i][j] += factor * b[p * ldb + j];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    float* row = out + i * ldo;
    for (int j = 0; j < kCols; ++j) row[j] = accumulate ? row[j] + sums[i][j] : sums[i][j];
  }
}

template <int kRows, int kCols>
void packed(int64_t kc, const float* a, int64_t a_step, const float* b, float* out, int64_t ldo,
            bool accumulate, int64_t cols, Ahead /*ahead*/) {
  micro<kRows, kCols>(kc, a, 1, a_step, b, kSizes.nr, out, ldo, accumulate, cols);
}

void dot_columns(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda, const void* b,
                 DType b_dtype, int64_t ldb, bool /*ahead*/, float* sums, int64_t lds) {
  const ConstMatrix columns{b, b_dtype, ldb, 1};  // [cols, k]
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      float sum = 0.0f;
      for (int64_t p = 0; p < k; ++p) {
        sum += a[i * lda + p] * load_float(at(columns, j, p), b_dtype);
      }
      sums[i * lds + j] = sum;
    }
  }
}

void add_rows(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda, const void* b,
              DType b_dtype, int64_t ldb, float* sums, int64_t lds) {
  const ConstMatrix matrix{b, b_dtype, ldb, 1};  // [k, cols]
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const float factor = a[i * lda + p];
      for (int64_t j = 0; j < cols; ++j) {
        sums[i * lds + j] += factor * load_float(at(matrix, p, j), b_dtype);
      }
    }
  }
}

}  // namespace

constexpr Kernels kGenericKernels = {
    .isa = Isa::kGeneric,
    .blocking = kSizes,
    .micro = {{micro<1, 4>, micro<1, 4>, micro<1, 8>},
              {micro<2, 4>, micro<2, 4>, micro<2, 8>},
              {micro<3, 4>, micro<3, 4>, micro<3, 8>},
              {micro<4, 4>, micro<4, 4>, micro<4, 8>}},
    .packed = {{packed<1, 4>, packed<1, 4>, packed<1, 8>},
               {packed<2, 4>, packed<2, 4>, packed<2, 8>},
               {packed<3, 4>, packed<3, 4>, packed<3, 8>},
               {packed<4, 4>, packed<4, 4>, packed<4, 8>}},
    .masks_columns = false,
    .pack = pack_any,
    .finish = finish_elements,
    .dot_rows = 2,
    .dot_rows_from_memory = 2,
    .dot_rows_unaligned = 2,
    .add_rows_rows = 4,
    .dot_columns = dot_columns,
    .add_rows = add_rows,
};

}  // namespace xgemm::cpu::dense
