#include "cuda/gemm/fp32/plan.h"

#include <cstdlib>
#include <limits>
#include <utility>

#include "common/math.h"

namespace xgemm::cuda::gemm::fp32 {
namespace {

// Whether all addresses of a matrix are multiples of 16 bytes, whose contiguous runs start `stride`
// elements apart, and whose stride over the batch is the member `batch`.
bool aligned(const Problem& p, const void* data, int64_t stride, int64_t extent,
             int64_t BatchDim::* batch) {
  uint64_t bits = reinterpret_cast<uintptr_t>(data);
  if (extent > 1) bits |= static_cast<uint64_t>(stride) * sizeof(float);
  for (int i = 0; i < p.batch_dims; ++i) {
    if (p.batch[i].size > 1) bits |= static_cast<uint64_t>(p.batch[i].*batch) * sizeof(float);
  }
  return bits % 16 == 0;
}

OperandParams make_operand(const Problem& p, const void* data, int64_t row_stride, int64_t k_stride,
                           int64_t BatchDim::* batch) {
  OperandParams operand{static_cast<const float*>(data), row_stride, k_stride, Access::kAlongRows,
                        row_stride == 1};
  if (row_stride == 1 && aligned(p, data, k_stride, p.k, batch)) {
    operand.access = Access::kRows16;
  } else if (row_stride != 1 && std::abs(k_stride) <= std::abs(row_stride)) {
    operand.access = Access::kAlongK;
    operand.unit_stride = k_stride == 1;
  }
  return operand;
}

}  // namespace

Params make_params(const Problem& p) {
  Params params{};
  params.m = p.m, params.n = p.n, params.k = p.k;
  params.a = make_operand(p, p.a.data, p.a.row_stride, p.a.col_stride, &BatchDim::a);
  params.b = make_operand(p, p.b.data, p.b.col_stride, p.b.row_stride, &BatchDim::b);
  params.d = static_cast<float*>(p.d);
  params.d_row_stride = p.d_row_stride, params.d_col_stride = p.d_col_stride;
  params.c = static_cast<const float*>(p.c.data);
  params.c_row_stride = p.c.row_stride, params.c_col_stride = p.c.col_stride;
  params.alpha = p.alpha, params.beta = p.beta;
  params.bias = static_cast<const float*>(p.bias);
  params.bias_col_stride = p.bias_stride;
  params.activation = p.activation;
  params.batch_dims = p.batch_dims;
  params.batches = 1;
  for (int i = 0; i < p.batch_dims; ++i) {
    params.batch[i] = p.batch[i];
    params.batches *= p.batch[i].size;
  }
  // D^T = B^T A^T, where D's columns are further apart than its rows.
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t row_step = p.m > 1 ? std::abs(p.d_row_stride) : kNone;
  const int64_t column_step = p.n > 1 ? std::abs(p.d_col_stride) : kNone;
  params.transposed = row_step < column_step;
  if (params.transposed) {
    std::swap(params.m, params.n);
    std::swap(params.a, params.b);
    std::swap(params.d_row_stride, params.d_col_stride);
    std::swap(params.c_row_stride, params.c_col_stride);
    std::swap(params.bias_row_stride, params.bias_col_stride);
    for (BatchDim& dim : params.batch) std::swap(dim.a, dim.b);
  }
  params.d_vector =
      params.d_col_stride == 1 && aligned(p, p.d, params.d_row_stride, params.m, &BatchDim::d);
  params.partial_stride = round_up<int64_t>(params.n, 4);
  return params;
}

}  // namespace xgemm::cuda::gemm::fp32
