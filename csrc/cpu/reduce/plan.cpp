#include "cpu/reduce/plan.h"

#include <algorithm>

#include "common/math.h"

namespace xgemm::cpu::reduce_detail {
namespace {

constexpr int64_t kRowTileElements = 32768;  // read for one tile of rows
constexpr int64_t kUnits = 64;               // tiles times pieces to have work for many threads
constexpr int64_t kManyRows = 64;
constexpr int64_t kShortRunBytes = 32;
constexpr int64_t kShortSearch = 32;       // elements
constexpr int64_t kPieceElements = 65536;  // no piece is smaller

}  // namespace

Plan make_plan(const ReduceProblem& problem) {
  const bool positions = finds_positions(problem.op);
  Plan plan;
  plan.kept = merge_dims(problem.kept, /*any_order=*/true, /*has_output=*/true);
  plan.reduced = merge_dims(problem.reduced, /*any_order=*/!positions, /*has_output=*/false);
  plan.outputs = plan.kept.elements();
  plan.extent = plan.reduced.elements();
  if (plan.outputs == 0) return plan;

  const ReduceDim& kept = plan.kept.innermost();
  const ReduceDim& reduced = plan.reduced.innermost();
  bool rows = kept.size == 1 || (reduced.size > 1 && lies_inside(reduced, kept));
  if (rows && kept.size >= kManyRows) {
    // Runs too short to fill a vector, or to search for a position, are transposed while gathered.
    const int64_t bytes = reduced.size * element_size(problem.in_dtype);
    rows = positions ? reduced.size > kShortSearch : bytes >= kShortRunBytes;
  }
  plan.direction = rows ? Direction::kRows : Direction::kColumns;
  plan.tile = std::min<int64_t>(kept.size, kMaxTile);
  if (rows) {
    const int64_t fitting = kRowTileElements / std::max<int64_t>(plan.extent, 1);
    plan.tile = std::min(plan.tile, std::max<int64_t>(fitting, 1));
  }
  plan.tiles_inner = ceil_div(kept.size, plan.tile);
  plan.tiles = plan.outputs / kept.size * plan.tiles_inner;

  const int64_t elements = plan.outputs * plan.extent;
  const int64_t shortest = rows ? 8192 : 64;  // along the reduced extent
  const int64_t most = std::min(elements / kPieceElements, plan.extent / shortest);
  plan.pieces = std::max<int64_t>(std::min(ceil_div(kUnits, plan.tiles), most), 1);
  return plan;
}

}  // namespace xgemm::cpu::reduce_detail
