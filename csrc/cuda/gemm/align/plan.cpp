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

int64_t leading_dimension(int64_t inner, DType dtype) {
  // Rows that begin with a line of the L2 cache take fewer of its sectors, but longer rows. A
  // tensor map needs a multiple of 16 bytes.
  const int64_t line = 128 / element_size(dtype), vector = 16 / element_size(dtype);
  return round_up(inner, inner >= 8 * line ? line : vector);
}

Order order_of(const GemmProblem& problem, int64_t extent, int64_t stride, int64_t k_stride) {
  const bool along_k =
      is_skinny_side(problem, extent) || distance(problem.k, k_stride) <= distance(extent, stride);
  return along_k ? Order::kAlongK : Order::kAcrossK;
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
  constexpr int64_t kMaxSkinnySide = 32;
  return extent <= kMaxSkinnySide && extent == std::min(problem.m, problem.n);
}

Order order_of_a(const GemmProblem& p) { return order_of(p, p.m, p.a.row_stride, p.a.col_stride); }

Order order_of_b(const GemmProblem& p) { return order_of(p, p.n, p.b.col_stride, p.b.row_stride); }

AlignedCopy copy_of(const GemmProblem& problem, bool of_a, Order order) {
  const GemmOperand& operand = of_a ? problem.a : problem.b;
  const int64_t rows = of_a ? problem.m : problem.k, columns = of_a ? problem.k : problem.n;
  AlignedCopy copy;
  copy.src = operand.data;
  copy.inner_is_columns = of_a == (order == Order::kAlongK);
  copy.outer = copy.inner_is_columns ? rows : columns;
  copy.inner = copy.inner_is_columns ? columns : rows;
  copy.outer_stride = copy.inner_is_columns ? operand.row_stride : operand.col_stride;
  copy.inner_stride = copy.inner_is_columns ? operand.col_stride : operand.row_stride;
  copy.leading_dimension = leading_dimension(copy.inner, problem.dtype);
  copy.batch_dims = problem.batch_dims;
  for (int i = 0; i < problem.batch_dims; ++i) {
    copy.batch_stride[i] = of_a ? problem.batch[i].a : problem.batch[i].b;
    copy.batch_size[i] = copy.batch_stride[i] == 0 ? 1 : problem.batch[i].size;
  }
  return copy;
}

CopyList read_copies(GemmProblem* problem, const Copies& plan, void* workspace) {
  CopyList list;
  for (const bool of_a : {true, false}) {
    const Order order = of_a ? plan.a : plan.b;
    if (order == Order::kNone) continue;
    AlignedCopy& copy = list.copies[list.count++] = copy_of(*problem, of_a, order);
    copy.dst = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(workspace) + list.bytes);
    list.bytes += copy.bytes(problem->dtype);
    read_from(*problem, of_a ? problem->a : problem->b, copy, of_a ? &BatchDim::a : &BatchDim::b);
  }
  merge_batch(*problem);
  return list;
}

}  // namespace xgemm::cuda::gemm::align
