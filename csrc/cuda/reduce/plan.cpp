// What a reduction is made of, before the GPU comes into it; and a configuration in words.
#include <cmath>
#include <string>

#include "cuda/reduce/select.h"

namespace xgemm::cuda::reduce {
namespace {

std::string blocks_of(const Config& config) {
  std::string text = ", " + std::to_string(config.tiles) + " x " + std::to_string(config.pieces) +
                     " blocks of " + std::to_string(config.threads) + " threads";
  if (config.kernel != Kernel::kRows && config.kernel != Kernel::kRuns)
    text += ", " + std::to_string(config.lanes) + " lanes";
  if (config.kernel == Kernel::kShortRows || config.kernel == Kernel::kRaggedRows) {
    text += ", " + std::to_string(config.vectors) + " loads a row";
  }
  if (config.collectors > 0) text += ", " + std::to_string(config.collectors) + " to collect";
  if (config.group > 1) text += ", " + std::to_string(config.group) + " columns an output";
  if (config.cluster > 1) text += ", clusters of " + std::to_string(config.cluster);
  return text;
}

}  // namespace

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

std::string explain(const Plan& plan, const Config& config) {
  constexpr const char* kNames[] = {
      "short rows",   "ragged rows",   "team rows",    "lone rows",       "row pieces",
      "rows",         "runs",          "columns",      "shifted columns", "flat columns",
      "thin columns", "short columns", "warp columns", "wrapped columns", "strided",
      "copy"};
  std::string text = "kernel: ";
  text += kNames[static_cast<int>(config.kernel)];
  if (config.kernel != Kernel::kCopy) text += blocks_of(config);
  text += "\noutputs: " + std::to_string(plan.outputs) + " of " + std::to_string(plan.extent) +
          " elements each";
  text += std::string("\nwhy: ") + config.reason + "\n";
  return text;
}

}  // namespace xgemm::cuda::reduce
