#include "cuda/gemm/sm80/plan.h"

#include <algorithm>
#include <cstdlib>

#include "common/math.h"
#include "cuda/gemm/make_params.h"

namespace xgemm::cuda::gemm::sm80 {
namespace {

// The largest power of two, at most 16, that divides all addresses of an operand whose contiguous
// runs start `stride` elements apart, and whose stride over the batch is the member `batch`.
int alignment(const GemmProblem& p, const void* data, int64_t stride, int64_t extent,
              int64_t BatchDim::* batch) {
  uint64_t bits = reinterpret_cast<uintptr_t>(data) | 16;
  if (extent > 1) bits |= static_cast<uint64_t>(stride) * 2;
  for (int i = 0; i < p.batch_dims; ++i) {
    if (p.batch[i].size > 1) bits |= static_cast<uint64_t>(p.batch[i].*batch) * 2;
  }
  return static_cast<int>(bits & ~(bits - 1));
}

// `stride`: between contiguous runs of `contiguous` elements, of which there are `runs`.
Access access_for(int alignment_bytes, int64_t contiguous, int64_t stride, int64_t runs) {
  const bool near = runs <= 1 || (stride >= 0 && stride < kMaxLineStride);
  switch (alignment_bytes) {
    case 16:
      return contiguous % 8 == 0 && near ? Access::kWhole16 : Access::kCopy16;
    case 8:
      return Access::kCopy8;
    case 4:
      return Access::kCopy4;
    default:
      return Access::kShift;
  }
}

// `rows`, `k`: the operand's extents. Where both of its dimensions can be read as contiguous (one
// of them has extent 1), the better aligned one counts.
OperandParams make_operand(const GemmProblem& p, const void* data, int64_t rows, int64_t k,
                           int64_t row_stride, int64_t k_stride, int64_t BatchDim::* batch) {
  OperandParams operand{data, row_stride, k_stride, Access::kStrided, false};
  const bool along_k = k_stride == 1 || k <= 1, along_rows = row_stride == 1 || rows <= 1;
  const Access by_k =
      along_k ? access_for(alignment(p, data, row_stride, rows, batch), k, row_stride, rows)
              : Access::kStrided;
  const Access by_rows = along_rows
                             ? access_for(alignment(p, data, k_stride, k, batch), rows, k_stride, k)
                             : Access::kStrided;
  if (by_k != by_rows) {
    operand.mn_major = by_rows < by_k;
  } else if (by_k == Access::kStrided) {
    operand.mn_major = std::abs(row_stride) < std::abs(k_stride);
  } else {
    operand.mn_major = k <= 1;
  }
  operand.access = std::min(by_k, by_rows);
  return operand;
}

}  // namespace

Params make_params(const GemmProblem& p) {
  Params params{};
  set_common(&params, p);
  params.a = make_operand(p, p.a.data, p.m, p.k, p.a.row_stride, p.a.col_stride, &BatchDim::a);
  params.b = make_operand(p, p.b.data, p.n, p.k, p.b.col_stride, p.b.row_stride, &BatchDim::b);
  params.d = p.d;
  params.bias = p.bias;
  if (is_column_major(p)) transpose(&params);
  params.d_vector = params.d_col_stride == 1 &&
                    alignment(p, p.d, params.d_row_stride, params.m, &BatchDim::d) >= 8;
  params.partial_stride = round_up<int64_t>(params.n, 4);
  return params;
}

}  // namespace xgemm::cuda::gemm::sm80
