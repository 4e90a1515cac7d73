// Rows: contiguous elements of an output, by lanes of a warp, a warp, a block or several.
#include <algorithm>
#include <cstdint>

#include "cuda/reduce/model.h"
#include "cuda/reduce/params.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int kShortThreads = 64;
constexpr int64_t kMaxShortLoads = 32;   // of a row
constexpr int64_t kMaxTeamLoads = 2048;  // of a row: more than a warp may have at its best
constexpr int kMinRowThreads = 128;
constexpr int kWarpShuffles = 5;

// By one lane, several or a warp, several rows a warp. False where no row fits.
bool consider_short_rows(const View& v, int64_t vectors, Search& search) {
  const Plan& plan = v.plan;
  if (v.few_kernels() || plan.reduced.count != 1 || plan.kept.count > 2) return false;
  if (plan.kept.count == 2 && plan.outputs >= k31Bits) return false;
  if (vectors > kMaxShortLoads) return false;
  const bool whole = plan.kept.count == 1 && plan.extent % v.vector == 0 && v.all_aligned(false);
  const auto slots = static_cast<int>(pow2_ceil(vectors));
  Candidate c;
  c.config = {.kernel = whole ? Kernel::kShortRows : Kernel::kRaggedRows,
              .threads = kShortThreads,
              .row_loads = vectors,
              .reason = "short rows: several a warp"};
  c.work = {.loads = v.batch,
            .batch = v.batch,
            .resident = whole && v.four_byte_lanes() ? 768 : 512,
            .run = int64_t{16} * 32 * v.batch};
  // All of a row at once, or with as much room again.
  for (const int room : {slots, 2 * slots}) {
    for (int lanes = 1; lanes <= std::min(room, 32); lanes *= 2) {
      const int vectors_of_lane = room / lanes;
      if (vectors_of_lane > v.batch) continue;
      c.config.lanes = lanes, c.config.vectors = vectors_of_lane;
      c.config.tiles = ceil_div<int64_t>(ceil_div(plan.outputs, rows_of_warp(c.config, v.batch)),
                                         kShortThreads / 32);
      c.work.shuffles = v.batch / vectors_of_lane * log2_of(lanes);
      c.work.lines = vectors_of_lane > 1 || vectors != lanes ? std::max(4, 32 / lanes) : 4;
      search.consider(c);
    }
  }
  return true;
}

// By a warp, or by a part of one that has at least both ragged ends' elements. Lanes that have
// nothing are for rows that nothing else takes.
void consider_team_rows(const View& v, int64_t vectors, bool idle_lanes, Search& search) {
  if (v.plan.reduced.count != 1 || v.vector > 16 || vectors > kMaxTeamLoads) return;
  const auto fewest = static_cast<int>(std::max<int64_t>(8, 2 * v.vector));
  Candidate c;
  c.config = {.kernel = Kernel::kTeamRows, .reason = "rows: a warp each, or a part of one"};
  for (int lanes = fewest; lanes <= 32; lanes *= 2) {
    if (lanes > 2 * vectors && !(idle_lanes && lanes == fewest)) break;
    for (const int threads : {64, 128}) {
      c.config.threads = threads, c.config.lanes = lanes;
      c.config.tiles = ceil_div<int64_t>(v.plan.outputs, threads / lanes);
      c.work = {.loads = ceil_div<int64_t>(vectors, lanes),
                .batch = v.batch,
                .run = std::min<int64_t>(vectors, lanes * v.batch) * 16,
                .lines = std::max(4.0, 32.0 / lanes + (v.all_aligned(false) ? 0 : 1)),
                .shuffles = static_cast<double>(log2_of(lanes))};
      search.consider(c);
    }
  }
}

// A block has a row, with all of its loads in flight; or a cluster, as long as every SM has one
// block at the most.
void consider_small_rows(const View& v, int64_t vectors, Search& search) {
  if (!v.small() || v.plan.outputs >= k31Bits - 1) return;
  for (int threads = kMinRowThreads; threads <= kMaxThreads; threads *= 2) {
    Candidate c;
    c.config = {.kernel = Kernel::kLoneRows,
                .threads = threads,
                .tiles = v.plan.outputs,
                .reason = "rows: a block each"};
    c.work = {.loads = ceil_div<int64_t>(vectors, threads),
              .batch = kLoneRowLoads,
              .run = std::min<int64_t>(vectors, threads * kLoneRowLoads) * 16,
              .shuffles = kWarpShuffles,
              .combines = threads / 32.0};
    const bool busy = threads == kMinRowThreads || threads < 2 * vectors;
    if (vectors <= int64_t{kLoneRowLoads} * threads && busy) search.consider(c);
    const int64_t pieces = ceil_div<int64_t>(vectors, int64_t{kRowPieceLoads} * threads);
    if (!v.clusters() || pieces < 2 || pieces > kMaxCluster) continue;
    if (pieces * v.plan.outputs > v.device.sm_count) continue;
    c.config.kernel = Kernel::kRowPieces, c.config.reason = "rows: a cluster each";
    c.config.pieces = c.config.cluster = static_cast<int>(pieces);
    c.work = {.loads = ceil_div<int64_t>(vectors, pieces * threads),
              .run = int64_t{threads} * kRowPieceLoads * 16};
    search.consider(c);
  }
}

}  // namespace

bool fits_rows(const View& v) {
  const Plan& plan = v.plan;
  if (v.groups || v.reduced().in_stride != 1 || v.reduced().size <= 1) return false;
  if (plan.kept.count > Params::kMaxKept) return false;
  if (v.vectors_of_row() >= k31Bits - 1) return false;
  if (v.kind == Kind::kArg && plan.extent >= k31Bits) return false;
  if (v.few_kernels() && plan.reduced.count > 1) return false;
  return plan.reduced.count == 1 || 2 * v.reduced().size >= v.vector;
}

void consider_rows(const View& v, Search& search) {
  const int64_t vectors = v.vectors_of_row();
  const bool short_rows = consider_short_rows(v, vectors, search);
  consider_team_rows(v, vectors, !short_rows, search);
  consider_small_rows(v, vectors, search);
  const bool runs = v.plan.reduced.count > 1;
  for (int threads = kMaxThreads; threads >= kMinThreads; threads /= 2) {
    if (threads >= 2 * vectors && (threads > kMinThreads || short_rows)) continue;
    Candidate c;
    c.config = {.kernel = runs ? Kernel::kRuns : Kernel::kRows,
                .threads = threads,
                .tiles = v.plan.outputs,
                .row_loads = runs ? v.vectors_of_run() : 0,
                .reason = "rows: blocks each"};
    c.work = {.batch = v.batch,
              .run = std::min<int64_t>(vectors, int64_t{threads} * v.batch) * 16,
              .shuffles = kWarpShuffles,
              .combines = threads / 32.0};
    consider_pieces(
        v, c, ceil_div<int64_t>(vectors, threads),
        [&](int64_t pieces) { return ceil_div(vectors, pieces * threads); }, search);
  }
}

}  // namespace xgemm::cuda::reduce
