// What a reduction is made of, before the GPU comes into it.
#include <cmath>

#include "cuda/reduce/problem.h"

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
  plan.kept = merge_dims(problem.kept, /*any_order=*/true, /*has_output=*/true);
  plan.reduced =
      merge_dims(problem.reduced, /*any_order=*/!finds_positions(problem.op), /*has_output=*/false);
  plan.outputs = plan.kept.elements();
  plan.extent = plan.reduced.elements();
  return plan;
}

}  // namespace xgemm::cuda::reduce
