// The AVX2 kernels that more than one table may use.
#pragma once

#include "cpu/sgemm/kernels.h"

namespace xgemm::cpu::dense {

void pack_avx2(const ConstMatrix& x, int64_t extent, int64_t k, int64_t width, float* out);
void finish_avx2(const Product& p, int64_t i0, int64_t j0, int64_t rows, int64_t cols,
                 const float* sums, int64_t ld);
void dot_columns_avx2(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                      const void* b, DType b_dtype, int64_t ldb, bool ahead, float* sums,
                      int64_t lds);
void add_rows_avx2(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                   const void* b, DType b_dtype, int64_t ldb, float* sums, int64_t lds);

}  // namespace xgemm::cpu::dense
