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

// Dimensions whose elements are all the same one go outermost: they are the cheapest to loop over.
bool inside(const ReduceDim& a, const ReduceDim& b) {
  if (a.in_stride == 0 || b.in_stride == 0) return a.in_stride != 0 && b.in_stride == 0;
  return a.in_stride < b.in_stride;
}

ReduceDims merge(const ReduceDims& dims, bool any_order, bool has_output) {
  ReduceDims sorted;
  for (int i = 0; i < dims.count; ++i) {
    if (dims[i].size == 1) continue;
    sorted.push(dims[i]);
    // Insertion sort, outermost first: there are few dimensions, mostly in order already.
    for (int j = sorted.count - 1; any_order && j > 0 && inside(sorted[j - 1], sorted[j]); --j) {
      std::swap(sorted[j - 1], sorted[j]);
    }
  }
  ReduceDims merged;
  for (int i = 0; i < sorted.count; ++i) {
    const ReduceDim dim = sorted[i];
    if (merged.count > 0) {
      ReduceDim& last = merged[merged.count - 1];
      const bool joins = last.in_stride == dim.size * dim.in_stride &&
                         (!has_output || last.out_stride == dim.size * dim.out_stride);
      if (joins) {
        last = {last.size * dim.size, dim.in_stride, dim.out_stride};
        continue;
      }
    }
    merged.push(dim);
  }
  if (merged.count == 0) merged.push({1, 1, 1});
  return merged;
}

int64_t count_of(const ReduceDims& dims) {
  int64_t count = 1;
  for (int i = 0; i < dims.count; ++i) count *= dims[i].size;
  return count;
}

}  // namespace

Plan make_plan(const ReduceProblem& problem) {
  const bool positions = problem.op == ReduceOp::kArgmax || problem.op == ReduceOp::kArgmin;
  Plan plan;
  plan.kept = merge(problem.kept, /*any_order=*/true, /*has_output=*/true);
  plan.reduced = merge(problem.reduced, /*any_order=*/!positions, /*has_output=*/false);
  plan.outputs = count_of(plan.kept);
  plan.extent = count_of(plan.reduced);
  if (plan.outputs == 0) return plan;

  const ReduceDim& kept = plan.kept[plan.kept.count - 1];
  const ReduceDim& reduced = plan.reduced[plan.reduced.count - 1];
  bool rows = kept.size == 1 || (reduced.size > 1 && inside(reduced, kept));
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
