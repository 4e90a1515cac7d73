// What is said of a reduction on the CPU.
#include <string>

#include "common/json.h"
#include "cpu/reduce/plan.h"

namespace xgemm::cpu {

std::string explain_reduce(const ReduceProblem& problem, bool json) {
  const reduce_detail::Plan plan = reduce_detail::make_plan(problem);
  const bool rows = plan.direction == reduce_detail::Direction::kRows;
  const char* kernel = rows ? "rows" : "columns";
  const char* reason = rows ? "the elements that lie closest are reduced with each other"
                            : "the elements that lie closest belong to different outputs";
  if (!json) {
    return std::string("kernel: ") + kernel + ", " + std::to_string(plan.tiles) + " x " +
           std::to_string(plan.pieces) + " pieces\noutputs: " + std::to_string(plan.outputs) +
           " of " + std::to_string(plan.extent) + " elements each\nbecause: " + reason + "\n";
  }
  JsonObject size, choice;
  size.add("outputs", plan.outputs)
      .add("elements", plan.extent)
      .add("dtype", name_of(problem.in_dtype));
  choice.add("kernel", kernel)
      .add("tiles", plan.tiles)
      .add("pieces", plan.pieces)
      .add("tile", plan.tile)
      .add("reason", reason);
  return rule_json("reduce", size, choice);
}

}  // namespace xgemm::cpu
