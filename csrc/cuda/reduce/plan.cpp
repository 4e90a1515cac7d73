// What a reduction is made of, before the GPU comes into it.
#include <cmath>

#include "cuda/reduce/select.h"

namespace xgemm::cuda::reduce {
Kind kind_of(const ReduceProblem& problem) {
  switch (problem.op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return Kind::kSum;
    case ReduceOp::kProd:
      return Kind::kProd;
    case ReduceOp::kAmax:
    case ReduceOp::kAmin:
      return Kind::kExtreme;
    case ReduceOp::kArgmax:
    case ReduceOp::kArgmin:
      return Kind::kArg;
    case ReduceOp::kNorm:
      break;
  }
  if (problem.p == 0 || problem.p == 1 || problem.p == 2) return Kind::kSquares;
  return std::isinf(problem.p) ? Kind::kExtreme : Kind::kPowers;
}

Plan make_plan(const ReduceProblem& problem) {
  Plan plan;
  plan.reduced =
      merge_dims(problem.reduced, /*any_order=*/!finds_positions(problem.op), /*has_output=*/false);
  plan.extent = plan.reduced.elements();
  // A copy had better read here and there than write so.
  plan.kept = merge_dims(problem.kept, /*any_order=*/plan.extent != 1, /*has_output=*/true);
  plan.outputs = plan.kept.elements();
  return plan;
}

Plan columns_of_groups(const Plan& plan) {
  Plan columns = plan;
  const int64_t group = plan.reduced.innermost().size;
  for (int d = 0; d < plan.kept.count; ++d) columns.kept[d].out_stride *= group;
  ReduceDim& inner = columns.kept[plan.kept.count - 1];
  inner = {inner.size * group, 1, 1};
  --columns.reduced.count;
  columns.outputs *= group, columns.extent /= group;
  return columns;
}

}  // namespace xgemm::cuda::reduce
