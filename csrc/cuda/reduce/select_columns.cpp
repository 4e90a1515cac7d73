// Columns: neighbouring elements that belong to neighbouring outputs.
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "cuda/reduce/model.h"
#include "cuda/reduce/params.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int kWidestLanes = 256;  // along a block's rows
constexpr int64_t kMaxRowsOfFlatProducts = 10;
constexpr int kNarrowest = 32;  // the least part of the widest lanes that is considered

// Threads of an SM, where it was measured by the registers that columns take.
int columns_resident(const View& v) {
  const DType dtype = v.problem.in_dtype;
  if (v.kind == Kind::kProd && (dtype == DType::kF16 || dtype == DType::kF32)) return 640;
  if (v.kind == Kind::kSquares && dtype == DType::kBF16) return 640;
  if (v.kind == Kind::kSquares && dtype == DType::kF32) return 896;
  if (v.kind == Kind::kExtreme && v.element == 4) return 768;
  return v.vector > 4 ? 768 : 1024;
}

// Rows that lie so close to one another that they are read as one run. (Tiles read those of whole
// loads.)
void consider_wrapped(const View& v, Search& search) {
  const int64_t columns = v.kept().size, stride = v.reduced().in_stride;
  if (v.few_kernels() || v.kind == Kind::kArg || v.plan.reduced.count > 1) return;
  if (v.all_aligned(true) && !v.few_columns()) return;
  const int64_t elements = (v.plan.extent - 1) * stride + columns;
  if (stride < columns || 2 * v.vector > elements || elements >= k31Bits * v.vector) return;
  const int64_t period = stride / std::gcd(stride, v.vector), lanes = pow2_ceil(columns);
  const int64_t vectors = ceil_div(elements, v.vector);
  for (int threads = kMinThreads; threads <= kMaxThreads; threads *= 2) {
    if (threads < std::max(period, lanes)) continue;
    const int64_t busy = threads / period * period;
    Candidate c;
    c.config = {.kernel = Kernel::kWrapped,
                .threads = threads,
                .lanes = static_cast<int>(lanes),
                .vectors = static_cast<int>(threads / period),
                .tiles = v.plan.outputs / columns,
                .row_loads = period,
                .reason = "few columns: rows as one run"};
    if (shared_bytes(c.config, v.kind, v.problem.in_dtype) > kSharedBytes) continue;
    c.work = {.batch = v.batch,
              .resident =
                  std::min(v.four_byte_lanes() && v.vector <= 4 ? 1024 : 768, columns_resident(v)),
              .run = int64_t{threads} * v.batch * 16,
              .unread = static_cast<double>(stride) / static_cast<double>(columns),
              .shuffles = static_cast<double>(log2_of(32 / std::min<int64_t>(lanes, 32))),
              .combines = static_cast<double>(threads / std::max<int64_t>(lanes, 32) + v.vector +
                                              v.vector * lanes / columns),
              .outputs_of_tile = lanes};
    consider_pieces(
        v, c, ceil_div<int64_t>(vectors, busy),
        [&](int64_t pieces) { return ceil_div(vectors, pieces * busy); }, search);
  }
}

// A thread has all of its columns. Returns whether nothing else should: products of bf16 that tiles
// do not store at once.
bool consider_flat(const View& v, Search& search) {
  const int64_t across = ceil_div(v.kept().size, v.vector);
  const int64_t of_all = v.plan.outputs / v.kept().size * across;
  if (!has_flat(v.problem.in_dtype) || v.few_kernels() || v.groups) return false;
  if (of_all >= k31Bits || v.plan.extent > kMaxOfThread) return false;
  for (int threads = kMinThreads; threads <= kMaxThreadsOfElements; threads *= 2) {
    Candidate c;
    c.config = {.kernel = Kernel::kFlat,
                .threads = threads,
                .tiles = ceil_div<int64_t>(of_all, threads),
                .reason = "short columns: a thread each"};
    c.work = {.loads = v.plan.extent,
              .batch = in_flight(Kernel::kFlat, v.kind, v.problem.in_dtype),
              .passes = 2,
              .resident = 768,
              .run = 16 * std::min<int64_t>(across, threads)};
    search.consider(c);
  }
  return is_tight(v.kind, v.problem.in_dtype) && v.plan.extent <= kMaxRowsOfFlatProducts;
}

void consider_tiles(const View& v, Search& search) {
  const Plan& plan = v.plan;
  const bool shifted = v.few_kernels() || !v.all_aligned(true) || plan.reduced.count > 1;
  const int64_t across = ceil_div(v.kept().size, v.vector);
  const auto vector = static_cast<int>(v.vector);
  const bool dense = plan.reduced.count == 1 && v.reduced().in_stride == v.kept().size;
  const bool stores = stores_lanes(v.vector * v.result) && !is_tight(v.kind, v.problem.in_dtype);
  Candidate c;
  Config& config = c.config;
  config = {.kernel = shifted ? Kernel::kShifted : Kernel::kColumns, .reason = "columns: tiles"};
  const auto widest = static_cast<int>(std::min<int64_t>(pow2_ceil(across), kWidestLanes));
  for (int lanes = widest; lanes >= std::max(widest / kNarrowest, 1); lanes /= 2) {
    for (int threads = std::max(lanes, kMinThreads); threads <= kMaxThreads; threads *= 2) {
      config.threads = threads, config.lanes = lanes, config.one_shift = false;
      config.one_shift = has_one_shift(config, plan, vector);
      if (shared_bytes(config, v.kind, v.problem.in_dtype) > kSharedBytes) config.one_shift = false;
      if (shared_bytes(config, v.kind, v.problem.in_dtype) > kSharedBytes) continue;
      config.tiles = plan.outputs / v.kept().size *
                     ceil_div<int64_t>(v.kept().size, tile_columns(config, vector));
      const bool whole_rows = dense && lanes >= across;
      const int64_t groups = threads / lanes;
      const int span = config.one_shift ? lanes : std::max(lanes, 32);
      c.work = {
          .batch = in_flight(config.kernel, v.kind, v.problem.in_dtype),
          .passes = shifted && !config.one_shift ? 2 : 1,
          .resident = shifted ? (v.vector > 4 ? 512 : 1024) : columns_resident(v),
          .run = 16 * (whole_rows ? int64_t{threads} * v.batch : std::min<int64_t>(lanes, across)),
          .narrow = !whole_rows,
          .lines = whole_rows ? 4.0 : std::max(4, 32 / lanes),
          .shuffles = config.one_shift ? 0.0 : vector * log2_of(span / lanes),
          .combines = static_cast<double>(
              threads / span * ceil_div<int64_t>(lanes * v.vector, threads) + v.vector),
          .alone = lanes == threads && !config.one_shift && stores && !v.groups,
          .outputs_of_tile = lanes * v.vector};
      consider_pieces(
          v, c, ceil_div(plan.extent, groups),
          [&](int64_t pieces) { return ceil_div(plan.extent, pieces * groups); }, search);
    }
  }
}

}  // namespace

bool fits_columns(const View& v) {
  const Plan& plan = v.plan;
  if (v.kept().in_stride != 1 || v.kept().size < 2) return false;
  if (plan.kept.count > Params::kMaxKept || plan.reduced.count > 2) return false;
  return plan.extent > 0 && plan.extent < k31Bits && plan.outputs / v.vector < k31Bits / 2;
}

void consider_columns(const View& v, Search& search) {
  if (!v.few_columns()) {
    if (!consider_flat(v, search)) consider_tiles(v, search);
  }
  consider_wrapped(v, search);
}

}  // namespace xgemm::cuda::reduce
