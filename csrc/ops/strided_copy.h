// Copies rows between a matrix and a tensor whose leading dimensions have no common row stride.
#pragma once

#include <cstdint>

#include "common/parallel.h"

namespace xgemm::ops {

// dst[row, to[j]] = src[row, from[j]], where a missing index is j itself. A row's place in the
// tensor follows from its leading dimensions; `tensor_is_source` says which of the two it is.
struct RowCopy {
  int64_t rows = 0, cols = 0;
  int64_t item_size = 0;  // 2 or 4 bytes
  const void* src = nullptr;
  void* dst = nullptr;
  bool tensor_is_source = true;
  int64_t leading_dims = 0;                                            // of the tensor
  const int64_t *leading_sizes = nullptr, *leading_strides = nullptr;  // elements
  int64_t tensor_col_stride = 1;
  int64_t matrix_row_stride = 0;  // the matrix has columns next to each other
  const int32_t* from = nullptr;
  const int32_t* to = nullptr;
};

void copy_rows(const RowCopy& copy, const Parallel& parallel);

}  // namespace xgemm::ops
