// The AVX-512 kernels that the table takes from other files.
#pragma once

#include "cpu/sgemm/kernels.h"

namespace xgemm::cpu::dense {

void pack_avx512(const ConstMatrix& x, int64_t extent, int64_t k, int64_t width, float* out);
void dot_columns_avx512(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                        const void* b, DType b_dtype, int64_t ldb, bool ahead, float* sums,
                        int64_t lds);
void add_rows_avx512(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                     const void* b, DType b_dtype, int64_t ldb, float* sums, int64_t lds);

}  // namespace xgemm::cpu::dense
