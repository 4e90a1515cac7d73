#include "ops/strided_copy.h"

#include <algorithm>

namespace xgemm::ops {
namespace {

int64_t tensor_offset(const RowCopy& copy, int64_t row) {
  int64_t offset = 0;
  for (int64_t d = copy.leading_dims - 1; d >= 0; --d) {
    offset += row % copy.leading_sizes[d] * copy.leading_strides[d];
    row /= copy.leading_sizes[d];
  }
  return offset;
}

template <typename T>
void copy_row(const RowCopy& copy, int64_t row) {
  const int64_t of_tensor = tensor_offset(copy, row), of_matrix = row * copy.matrix_row_stride;
  const T* src = static_cast<const T*>(copy.src) + (copy.tensor_is_source ? of_tensor : of_matrix);
  T* dst = static_cast<T*>(copy.dst) + (copy.tensor_is_source ? of_matrix : of_tensor);
  const int64_t src_stride = copy.tensor_is_source ? copy.tensor_col_stride : 1;
  const int64_t dst_stride = copy.tensor_is_source ? 1 : copy.tensor_col_stride;
  for (int64_t j = 0; j < copy.cols; ++j) {
    const int64_t from = copy.from != nullptr ? copy.from[j] : j;
    const int64_t to = copy.to != nullptr ? copy.to[j] : j;
    dst[to * dst_stride] = src[from * src_stride];
  }
}

}  // namespace

void copy_rows(const RowCopy& copy, const Parallel& parallel) {
  constexpr int64_t kGrain = 1 << 14;  // elements that are worth a task
  const int64_t rows_of_task = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, copy.cols));
  const int64_t tasks = (copy.rows + rows_of_task - 1) / rows_of_task;
  const auto task = [&](int64_t i) {
    const int64_t end = std::min(copy.rows, (i + 1) * rows_of_task);
    for (int64_t row = i * rows_of_task; row < end; ++row) {
      if (copy.item_size == 2) {
        copy_row<uint16_t>(copy, row);
      } else {
        copy_row<uint32_t>(copy, row);
      }
    }
  };
  parallel.for_each(tasks, task);
}

}  // namespace xgemm::ops
