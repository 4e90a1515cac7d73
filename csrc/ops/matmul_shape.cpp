#include "ops/matmul_shape.h"

#include <algorithm>

namespace xgemm::ops {
namespace {

// Size and stride of batch dimension `i` of `batch_dims`, counted from the front, of an operand
// whose last `matrix_dims` dimensions are the matrix. A missing dimension, or one of size 1, is
// broadcast.
int64_t batch_size(const TensorView& view, int64_t matrix_dims, int64_t batch_dims, int64_t i) {
  const int64_t d = i - batch_dims + view.dim - matrix_dims;
  return d < 0 ? 1 : view.sizes[d];
}
int64_t batch_stride(const TensorView& view, int64_t matrix_dims, int64_t batch_dims, int64_t i) {
  const int64_t d = i - batch_dims + view.dim - matrix_dims;
  return d < 0 || view.sizes[d] == 1 ? 0 : view.strides[d];
}

bool continues(const BatchDim& outer, const BatchDim& inner) {
  return outer.a == inner.a * inner.size && outer.b == inner.b * inner.size &&
         outer.c == inner.c * inner.size && outer.d == inner.d * inner.size;
}

// The innermost batch dimension becomes more rows of A where B is the same for all of it.
void fold_into_rows(GemmProblem& problem) {
  while (problem.batch_dims > 0) {
    const BatchDim& inner = problem.batch[problem.batch_dims - 1];
    if (inner.b != 0) return;
    if (problem.m == 1) {
      problem.a.row_stride = inner.a;
      problem.c.row_stride = inner.c;
      problem.d_row_stride = inner.d;
    } else if (inner.a != problem.m * problem.a.row_stride ||
               inner.c != problem.m * problem.c.row_stride ||
               inner.d != problem.m * problem.d_row_stride) {
      return;
    }
    problem.m *= inner.size;
    --problem.batch_dims;
  }
}

}  // namespace

MatmulShape::MatmulShape(const char* op, const TensorView& a, const TensorView& b, bool transa,
                         bool transb)
    : a_(a), b_(b), transa_(transa), transb_(transb) {
  if (a.dim == 0) value_error(op, ": a must have at least 1 dimension, got a 0-D tensor");
  if (b.dim == 0) value_error(op, ": b must have at least 1 dimension, got a 0-D tensor");
  if (a.dim > 1) m_ = a.size(transa ? -1 : -2);
  if (b.dim > 1) n_ = b.size(transb ? -2 : -1);
  k_ = a.size(transa ? -2 : -1);
  const int64_t b_k = b.dim > 1 ? b.size(transb ? -1 : -2) : b.sizes[0];
  if (k_ != b_k) {
    value_error(op, ": ", transa ? "the second to last" : "the last", " dimension of a must equal ",
                b.dim == 1 ? "the dimension"
                : transb   ? "the last dimension"
                           : "the second to last dimension",
                " of b, got a ", shape_of(a), " and b ", shape_of(b));
  }
  const int64_t a_matrix = std::min<int64_t>(a.dim, 2), b_matrix = std::min<int64_t>(b.dim, 2);
  const int64_t batch = std::max(a.dim - a_matrix, b.dim - b_matrix);
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t of_a = batch_size(a, a_matrix, batch, i);
    const int64_t of_b = batch_size(b, b_matrix, batch, i);
    if (of_a != of_b && of_a != 1 && of_b != 1) {
      value_error(op, ": the batch dimensions of a and b must be equal or 1, got a ", shape_of(a),
                  " and b ", shape_of(b));
    }
    result_.push_back(of_a == 1 ? of_b : of_a);
  }
  if (a.dim > 1) result_.push_back(m_);
  if (b.dim > 1) result_.push_back(n_);
}

void MatmulShape::require_result(const char* op, const char* name, const TensorView& view) const {
  require_shape(op, name, view, result_.data(), result_.dim());
}

void MatmulShape::set_result_strides(const TensorView& view, int64_t& row_stride,
                                     int64_t& col_stride) const {
  col_stride = b_.dim > 1 ? view.stride(-1) : 1;
  row_stride = a_.dim > 1 ? view.stride(b_.dim > 1 ? -2 : -1) : 0;
}

std::vector<BatchDim> MatmulShape::fill(GemmProblem& problem, const TensorView& d,
                                        const TensorView* c) const {
  problem.m = m_;
  problem.n = n_;
  problem.k = k_;
  const int64_t a_last = a_.stride(-1), a_first = a_.dim > 1 ? a_.stride(-2) : 0;
  problem.a.row_stride = transa_ ? a_last : a_first;
  problem.a.col_stride = transa_ ? a_first : a_last;
  const int64_t b_last = b_.dim > 1 ? b_.stride(-1) : 0, b_first = b_.stride(b_.dim > 1 ? -2 : -1);
  problem.b.row_stride = transb_ ? b_last : b_first;
  problem.b.col_stride = transb_ ? b_first : b_last;
  set_result_strides(d, problem.d_row_stride, problem.d_col_stride);
  if (c != nullptr) set_result_strides(*c, problem.c.row_stride, problem.c.col_stride);
  if (batch_dims() == 0) return {};
  return fill_batch(problem, d, c);
}

std::vector<BatchDim> MatmulShape::fill_batch(GemmProblem& problem, const TensorView& d,
                                              const TensorView* c) const {
  const int64_t batch = batch_dims();
  std::vector<BatchDim> outer;
  const int64_t a_matrix = a_.dim > 1 ? 2 : 1, b_matrix = b_.dim > 1 ? 2 : 1;
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t size = result_.data()[i];
    if (size == 1) continue;
    // Strides of operands without elements (K == 0) may have any value: they are not looked at.
    const BatchDim dim = {.size = size,
                          .a = k_ == 0 ? 0 : batch_stride(a_, a_matrix, batch, i),
                          .b = k_ == 0 ? 0 : batch_stride(b_, b_matrix, batch, i),
                          .c = c != nullptr ? c->strides[i] : 0,
                          .d = d.strides[i]};
    BatchDim* const last = problem.batch + problem.batch_dims - 1;
    if (problem.batch_dims > 0 && continues(*last, dim)) {
      const int64_t before = last->size;
      *last = dim;
      last->size = before * size;
      continue;
    }
    if (problem.batch_dims == kMaxBatchDims) {
      outer.push_back(problem.batch[0]);
      std::copy(problem.batch + 1, problem.batch + kMaxBatchDims, problem.batch);
      --problem.batch_dims;
    }
    problem.batch[problem.batch_dims++] = dim;
  }
  fold_into_rows(problem);
  return outer;
}

}  // namespace xgemm::ops
