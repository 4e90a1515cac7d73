// What TMA can read and write of a product's operands.
#pragma once

#include <cstdint>

#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// A matrix of `rows` contiguous rows of 16-bit elements: aligned bases and strides.
inline bool fits_tma(const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                     int64_t col_stride) {
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return false;
  if (columns > 1 && col_stride != 1) return false;
  return rows <= 1 || (row_stride % 8 == 0 && row_stride > 0 && row_stride * 2 < kMaxBytes);
}

inline bool x_fits_tma(const Problem& p) {
  return p.perm == nullptr && fits_tma(p.x, p.m, p.weight.layout.k, p.x_row_stride, p.x_col_stride);
}
// A store writes 16 bytes whole, of which a part may lie behind the end of a row.
inline bool d_fits_tma(const Problem& p) {
  return p.weight.layout.n % 8 == 0 &&
         fits_tma(p.d, p.m, p.weight.layout.n, p.d_row_stride, p.d_col_stride);
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
