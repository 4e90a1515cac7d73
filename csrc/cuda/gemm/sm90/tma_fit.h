// What TMA can read and write: 16-byte aligned bases and strides, one dimension contiguous.
#pragma once

#include <cstdint>

#include "common/gemm_problem.h"

namespace xgemm::cuda::gemm::sm90 {

// A matrix of `extent` rows, `stride` apart, of contiguous elements.
inline bool fits_tma(const void* data, int64_t contiguous_stride, int64_t stride, int64_t extent) {
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || contiguous_stride != 1) return false;
  return extent <= 1 || (stride % 8 == 0 && stride > 0 && stride * 2 < kMaxBytes);
}

// True where an operand's rows along K suit TMA; `mn` is its other extent.
inline bool k_major(int64_t k_stride, int64_t mn_stride, int64_t mn) {
  return fits_tma(nullptr, k_stride, mn_stride, mn);
}
inline bool a_k_major(const GemmProblem& p) { return k_major(p.a.col_stride, p.a.row_stride, p.m); }
inline bool b_k_major(const GemmProblem& p) { return k_major(p.b.row_stride, p.b.col_stride, p.n); }

inline bool operand_fits_tma(const GemmOperand& operand, int64_t rows, int64_t columns) {
  return fits_tma(operand.data, operand.col_stride, operand.row_stride, rows) ||
         fits_tma(operand.data, operand.row_stride, operand.col_stride, columns);
}

inline constexpr int kMaxTmaBatchDims = 2;

inline bool batch_fits(const GemmProblem& p, int64_t BatchDim::* stride) {
  for (int i = 0; i < p.batch_dims; ++i) {
    if (p.batch[i].*stride < 0 || p.batch[i].*stride % 8 != 0) return false;
  }
  return true;
}

inline bool a_fits_tma(const GemmProblem& p) {
  return operand_fits_tma(p.a, p.m, p.k) && batch_fits(p, &BatchDim::a);
}
inline bool b_fits_tma(const GemmProblem& p) {
  return operand_fits_tma(p.b, p.k, p.n) && batch_fits(p, &BatchDim::b);
}
// A store writes 16 bytes whole, of which a part may lie behind the end of a row.
inline bool d_fits_tma(const GemmProblem& p) {
  if (p.n % 8 != 0) return false;
  for (int i = 0; i < p.batch_dims; ++i) {
    if (p.batch[i].d <= 0) return false;
  }
  return fits_tma(p.d, p.d_col_stride, p.d_row_stride, p.m) && batch_fits(p, &BatchDim::d);
}

// Extents are coordinates, and tiles may reach past the end; no more dimensions than a map has.
inline bool extents_fit_tma(const GemmProblem& p) {
  constexpr int64_t kMax = INT32_MAX - 1024;
  if (p.m > kMax || p.n > kMax || p.k > kMax || p.batch_dims > kMaxTmaBatchDims) return false;
  int64_t batch = 1;
  for (int i = 0; i < p.batch_dims; ++i) {
    if (p.batch[i].size > kMax) return false;
    batch *= p.batch[i].size;
  }
  return batch <= kMax;
}

}  // namespace xgemm::cuda::gemm::sm90
