#include "cuda/gemm/align/plan.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace xgemm::cuda::gemm::align {
namespace {

// How far apart the elements of a dimension lie, where that matters.
int64_t distance(int64_t extent, int64_t stride) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  return extent <= 1 || stride == 0 ? kNone : std::abs(stride);
}

int64_t leading_dimension(int64_t inner) {
  // Rows that begin with a line of the L2 cache take fewer of its sectors, but longer rows. A
  // tensor map needs a multiple of 16 bytes.
  constexpr int64_t kLine = 64, kVector = 8;
  return round_up(inner, inner >= 8 * kLine ? kLine : kVector);
}

AlignedCopy plan(const GemmProblem& problem, const GemmOperand& operand, int64_t rows,
                 int64_t columns, bool k_is_columns, int64_t BatchDim::* stride) {
  const int64_t of_rows = distance(rows, operand.row_stride);
  const int64_t of_columns = distance(columns, operand.col_stride);
  AlignedCopy copy;
  copy.src = operand.data;
  const bool along_k =
      is_skinny_side(problem, k_is_columns ? rows : columns) || of_columns == of_rows;
  copy.inner_is_columns = along_k ? k_is_columns : of_columns < of_rows;
  copy.outer = copy.inner_is_columns ? rows : columns;
  copy.inner = copy.inner_is_columns ? columns : rows;
  copy.outer_stride = copy.inner_is_columns ? operand.row_stride : operand.col_stride;
  copy.inner_stride = copy.inner_is_columns ? operand.col_stride : operand.row_stride;
  copy.leading_dimension = leading_dimension(copy.inner);
  copy.batch_dims = problem.batch_dims;
  for (int i = 0; i < problem.batch_dims; ++i) {
    copy.batch_stride[i] = problem.batch[i].*stride;
    copy.batch_size[i] = copy.batch_stride[i] == 0 ? 1 : problem.batch[i].size;
  }
  return copy;
}

bool continues(const BatchDim& outer, const BatchDim& inner, bool reads_c) {
  return outer.a == inner.a * inner.size && outer.b == inner.b * inner.size &&
         (!reads_c || outer.c == inner.c * inner.size) && outer.d == inner.d * inner.size;
}

void merge_batch(GemmProblem& problem) {
  int kept = 0;
  for (int i = 0; i < problem.batch_dims; ++i) {
    const BatchDim dim = problem.batch[i];
    if (dim.size == 1) continue;
    if (kept > 0 && continues(problem.batch[kept - 1], dim, problem.beta != 0.0f)) {
      const int64_t outer = problem.batch[kept - 1].size;
      problem.batch[kept - 1] = dim;
      problem.batch[kept - 1].size = outer * dim.size;
    } else {
      problem.batch[kept++] = dim;
    }
  }
  problem.batch_dims = kept;
}

void read_from(GemmProblem& problem, GemmOperand& operand, const AlignedCopy& copy,
               int64_t BatchDim::* stride) {
  operand.data = copy.dst;
  operand.row_stride = copy.inner_is_columns ? copy.leading_dimension : 1;
  operand.col_stride = copy.inner_is_columns ? 1 : copy.leading_dimension;
  int64_t step = copy.outer * copy.leading_dimension;
  for (int i = problem.batch_dims - 1; i >= 0; --i) {
    problem.batch[i].*stride = copy.batch_stride[i] == 0 ? 0 : step;
    step *= copy.batch_size[i];
  }
}

}  // namespace

bool is_skinny_side(const GemmProblem& problem, int64_t extent) {
  constexpr int64_t kMaxFew = 32;
  return extent <= kMaxFew && extent == std::min(problem.m, problem.n);
}

AlignedCopy copy_of_a(const GemmProblem& problem) {
  return plan(problem, problem.a, problem.m, problem.k, true, &BatchDim::a);
}

AlignedCopy copy_of_b(const GemmProblem& problem) {
  return plan(problem, problem.b, problem.k, problem.n, false, &BatchDim::b);
}

GemmProblem with_copies(const GemmProblem& problem, const AlignedCopy* a, const AlignedCopy* b) {
  GemmProblem changed = problem;
  if (a != nullptr) read_from(changed, changed.a, *a, &BatchDim::a);
  if (b != nullptr) read_from(changed, changed.b, *b, &BatchDim::b);
  merge_batch(changed);
  return changed;
}

}  // namespace xgemm::cuda::gemm::align
