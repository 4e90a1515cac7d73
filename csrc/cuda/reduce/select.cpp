// Which kernel a reduction gets, and how it is cut up.
#include "cuda/reduce/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "common/math.h"
#include "cuda/reduce/cost.h"
#include "cuda/reduce/params.h"
#include "cuda/reduce/view.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int64_t k31Bits = int64_t{1} << 31;
constexpr int kShortThreads = 64, kTeamThreads = 128, kFlatThreads = 256, kStridedThreads = 256;
constexpr int kFlatResident = 768;                       // threads of an SM
constexpr int kColumnThreads = 512, kWidestLanes = 256;  // of a block; along its rows
constexpr int kMostRowThreads = 32 * kMostRowWarps, kRowsResident = 1024;
constexpr int kMostVectors = 8;  // of a row that a lane of short rows takes at once
constexpr int kMostCluster = 8;  // what every GPU with clusters has
constexpr int kNarrowest = 32;   // the least part of the widest lanes that is considered
constexpr int64_t kMostFlatExtent = 4096;
// Elements that a thread should have to itself, of ragged rows and at any strides.
constexpr int64_t kThinRow = 10, kThinStrided = 16;
// Of the limits of lone rows and warp columns, and of where blocks of 512 threads are considered
// for columns: 120 random problems, and 80 near the limits, beside what was chosen before.
constexpr double kManyBytesOfLoneRows = 40e6;
constexpr int64_t kFewestWarpRows = 128, kMostWarpRows = 400;
constexpr int kWarpColumnsBlocks = 2048 / kWarpColumnsThreads;  // of an SM
constexpr int64_t kSharedBytes = 48 * 1024;
constexpr double kClusteredBytes = 100e6;  // from here on clusters of columns lose
constexpr int64_t kMostWrapped = 64;       // columns: 99 and 100 are 1 to 4 % slower so
constexpr int64_t kFewestWrapped = 512;    // rows of few columns: fewer are strided
// Of groups, by 247 random problems: runs of more bytes are read well one by one, a second launch
// pays from so many bytes on for each byte of a run (twice as many where runs are whole loads), and
// partial results of columns of fewer bytes take as long as the columns.
constexpr int64_t kMostGroupRun = 64, kFewestColumnBytes = 96;
constexpr double kFewestGroupBytes = 2e6, kGroupBytesOfRun = 4e5;
constexpr int64_t kMostGroupColumns = int64_t{1} << 22;
constexpr int64_t kSector = 32;  // bytes that are read together
constexpr int64_t kFewBatches = 4;
constexpr int kEnoughWarps = 16;                     // of an SM
constexpr int64_t kStridedPiece = int64_t{1} << 30;  // elements, at most

int64_t pow2_ceil(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

// After how many 16-byte loads of `vector` elements rows at this stride begin equally far in one.
int64_t period_of(int64_t stride, int64_t vector) { return stride / std::gcd(stride, vector); }

// One element each, which is the result or whose position is, and all behind one another. (Results
// always are.)
bool fits_copy(const View& v) {
  const ReduceOp op = v.problem.op;
  if (v.plan.extent != 1 || v.plan.kept.count != 1 || v.kept().in_stride != 1) return false;
  if (finds_positions(op)) return true;
  return op != ReduceOp::kNorm && reduce_output_dtype(op, v.problem.in_dtype) == v.problem.in_dtype;
}

bool fits_rows(const View& v) {
  const Plan& plan = v.plan;
  if (v.reduced().in_stride != 1 || v.reduced().size == 1) return false;
  if (plan.kept.count > Params::kMaxKept) return false;
  if (v.vectors_of_row() >= k31Bits - 1) return false;
  if (v.kind == Kind::kArg && plan.extent >= k31Bits) return false;
  if (v.few_kernels() && plan.reduced.count > 1) return false;
  return plan.reduced.count == 1 || 2 * v.reduced().size >= v.vector;
}

// The limits are those of the sweep: 16 loads where rows are few, 32 where they are many.
bool fits_short_rows(const View& v) {
  const Plan& plan = v.plan;
  if (v.few_kernels() || plan.reduced.count != 1 || plan.kept.count > 2) return false;
  if (plan.kept.count == 2 && plan.outputs >= k31Bits) return false;
  const bool many_whole = !v.few_rows() && v.all_aligned(false) && plan.extent % v.vector == 0;
  const bool fp64_of_fp32 =
      v.problem.in_dtype == DType::kF32 && v.kind != Kind::kArg && !v.four_byte_lanes();
  return v.vectors_of_row() <= (many_whole && !fp64_of_fp32 ? 32 : v.few_rows() ? 8 : 16);
}

bool fits_team_rows(const View& v) {
  if (v.plan.reduced.count != 1 || v.vector > 16) return false;
  const int64_t vectors = v.vectors_of_row();
  // Longer ones where few lack a block of their own.
  return vectors <= (v.few_rows() ? 64 : v.all_aligned(false) ? 256 : 512);
}

bool fits_columns(const View& v) {
  const Plan& plan = v.plan;
  if (v.kept().in_stride != 1 || v.kept().size < 2) return false;
  if (plan.kept.count > Params::kMaxKept || plan.reduced.count > 2) return false;
  if (plan.extent >= k31Bits || plan.outputs / v.vector >= k31Bits / 2) return false;
  return true;
}

// Few columns at strides that are no multiple of 16 bytes, in rows that lie so close to one another
// that they are best read as one run.
bool fits_wrapped(const View& v) {
  const int64_t columns = v.kept().size, stride = v.reduced().in_stride;
  if (v.few_kernels() || v.kind == Kind::kArg || v.plan.reduced.count > 1) return false;
  if (columns > kMostWrapped || v.all_aligned(true)) return false;
  if (v.few_columns() && v.plan.extent < kFewestWrapped) return false;
  if (stride < columns || (2 * columns < stride && stride * v.element > kSector)) return false;
  const int64_t elements = (v.plan.extent - 1) * stride + columns;
  return period_of(stride, v.vector) <= kColumnThreads && 2 * v.vector <= elements &&
         elements < k31Bits * v.vector;
}

// The cheapest way so far.
struct Choice {
  Config config;
  double cost = std::numeric_limits<double>::infinity();

  void consider(const Cut& cut, int cluster, bool mail, double cost_of_cut, int collectors = 0) {
    if (cost_of_cut >= cost) return;
    cost = cost_of_cut;
    config.threads = cut.threads, config.lanes = cut.lanes, config.tiles = cut.tiles;
    config.pieces = cut.pieces, config.cluster = cluster, config.mail = mail;
    config.one_shift = cut.one_shift, config.collectors = collectors;
  }
};

// Tries clusters and pieces that fill the GPU, by parts or several times. `cut` is whole; at most
// `most` pieces have something to do, and loads(pieces) are those of a thread.
template <typename Loads>
void consider_pieces(const View& v, Cut cut, int64_t most, bool clusters, const Loads& loads,
                     Choice* choice) {
  const int64_t sms = v.device.sm_count, tiles = std::max<int64_t>(cut.tiles, 1);
  cut.pieces = 1, cut.loads = loads(1);
  choice->consider(cut, 1, false, v.estimate(cut) + (v.groups ? meeting_in_a_launch(cut) : 0));
  const int64_t slots = sms * std::min(cut.resident / cut.threads, kMostBlocksOfSm);
  for (int c = 2; clusters && c <= std::min<int64_t>(kMostCluster, most); c *= 2) {
    cut.pieces = c, cut.loads = loads(c);
    const double waves = static_cast<double>(tiles * c) / static_cast<double>(slots);
    const double meeting = kCluster + kClusterWave * std::max(waves - 1, 0.0);
    choice->consider(cut, c, false, v.estimate(cut) + meeting);
  }
  int64_t last = 1;
  for (const int64_t quarters : {1, 2, 4, 8, 12, 24}) {
    cut.pieces = std::min(most, sms * quarters / 4 / tiles);
    if (cut.pieces <= last) continue;
    last = cut.pieces, cut.loads = loads(cut.pieces);
    const double whole = v.estimate(cut);
    if (whole >= choice->cost) continue;  // however they meet: a call should not search for long
    choice->consider(cut, 1, false, whole + meeting_in_a_launch(cut));
    if (v.groups) continue;
    choice->consider(cut, 1, true, whole + meeting_in_mail(cut, v.device.sm_count, 0));
    for (int n = 1; of_columns(choice->config.kernel) && n <= kMostOfTile; n *= 2) {
      choice->consider(cut, 1, true, whole + meeting_in_mail(cut, v.device.sm_count, n), n);
    }
  }
}

bool fits_thin(const View& v) {
  const Plan& plan = v.plan;
  return !v.groups && plan.outputs < k31Bits && plan.extent <= kMostFlatExtent &&
         plan.kept.count <= Params::kMaxKept && plan.reduced.count <= 2;
}

// A thread for each output, if that is cheaper than what was chosen.
void consider_thin(const View& v, Choice* choice) {
  if (!fits_thin(v)) return;
  const bool few = v.small() && v.plan.extent <= kMostFewRows && v.plan.kept.count == 1 &&
                   v.plan.reduced.count == 1;
  Cut cut{.loads = v.plan.extent, .batch = 8, .resident = 1536, .end = kThinEnd};
  if (few) cut.best_threads = kFlatThreads;
  cut.slower = std::max(kThinBytes / static_cast<double>(v.element), 1.0);
  Choice thin{.config = {.kernel = few ? Kernel::kFewRows : Kernel::kThin,
                         .reason = "few elements: a thread each"},
              .cost = choice->cost};
  for (cut.threads = kFewestThreads; cut.threads <= kFlatThreads; cut.threads *= 2) {
    cut.tiles = ceil_div<int64_t>(v.plan.outputs, cut.threads);
    cut.run = v.element * std::min<int64_t>(v.kept().size, cut.threads);
    thin.consider(cut, 1, false, v.estimate(cut));
  }
  if (thin.cost < choice->cost) *choice = thin;
}

Config thin(const View& v) {
  Choice choice;
  consider_thin(v, &choice);
  return choice.config;
}

// Rows of up to 32 loads: several a warp.
Config short_rows(const View& v) {
  const bool whole =
      v.plan.kept.count == 1 && v.plan.extent % v.vector == 0 && v.all_aligned(false);
  Config config{.kernel = whole ? Kernel::kShortRows : Kernel::kRaggedRows};
  const int64_t vectors = v.vectors_of_row();
  const auto slots = static_cast<int>(pow2_ceil(vectors));
  if (v.few_rows() || !whole) {  // rather loads of one row than of several
    config.vectors = std::min({2 * slots, kMostVectors, v.batch});
    if (!whole && !v.few_rows()) config.vectors = std::min({slots, kMostVectors, v.batch});
    config.lanes = std::max(slots / (whole ? 4 : config.vectors), 1);
  } else {
    // One load of each of 8 rows, or more of fewer where what lanes hand each other is 8 bytes.
    if (v.four_byte_lanes()) {
      config.vectors = vectors == slots && slots <= 16 ? 1 : std::min(slots, 2);
    } else {
      config.vectors =
          slots <= 4 || vectors == 8 ? std::min(slots, 2) : std::clamp(slots / 4, 4, v.batch);
    }
    config.lanes = slots / config.vectors;
  }
  config.threads = kShortThreads;
  config.tiles = ceil_div<int64_t>(ceil_div(v.plan.outputs, rows_of_warp(config, v.batch)),
                                   config.threads / 32);
  config.row_loads = vectors;
  config.reason = "short rows: several a warp";
  return config;
}

// Rows of a warp, or of a part of one.
Config team_rows(const View& v) {
  const int64_t vectors = v.vectors_of_row();
  const int64_t fewest = std::max<int64_t>(8, 2 * v.vector);  // both ends in one load each
  // Fewer lanes than a warp's where they have no more than a batch each, and there are warps
  // enough.
  int64_t lanes = 32;
  while (lanes > fewest && 2 * vectors <= lanes * v.batch &&
         v.plan.outputs * lanes / 64 >= kEnoughWarps * v.device.sm_count) {
    lanes /= 2;
  }
  Config config{.kernel = Kernel::kTeamRows,
                .threads = kTeamThreads,
                .lanes = static_cast<int>(lanes),
                .reason = "rows: a warp each, or a part of one"};
  config.tiles = ceil_div<int64_t>(v.plan.outputs, kTeamThreads / lanes);
  return config;
}

// Threads of a lone row.
int lone_row_threads(int64_t vectors) {
  return vectors <= 256 ? 128 : vectors <= 1024 ? 256 : kMostRowThreads;
}

// Where there is much to read most of a thread's loads should be there.
bool fits_lone_rows(const View& v) {
  if (!has_small(v.kind, v.problem.in_dtype) || v.plan.reduced.count > 1) return false;
  if (v.plan.kept.count > 1 || v.plan.outputs >= k31Bits - 1) return false;
  const int64_t vectors = v.vectors_of_row();
  const int64_t loads = kLoneRowLoads * lone_row_threads(vectors);
  return vectors <= loads && (v.bytes < kManyBytesOfLoneRows || 10 * vectors >= 7 * loads);
}

Config rows(const View& v) {
  const bool runs = v.plan.reduced.count > 1;
  Choice choice{.config = {.kernel = runs ? Kernel::kRuns : Kernel::kRows}};
  if (runs) choice.config.row_loads = v.vectors_of_run();
  const int64_t vectors = v.vectors_of_row();
  // In long rows larger blocks read faster than the estimate knows, but for positions.
  const bool large = vectors >= kLongRow && v.kind != Kind::kArg;
  const int fewest = large ? kLongRowThreads : kFewestThreads;
  for (int threads = fewest; threads <= kMostRowThreads; threads *= 2) {
    if (threads > kFewestThreads && threads >= 2 * vectors) break;
    const Cut cut{.threads = threads,
                  .lanes = 1,
                  .tiles = v.plan.outputs,
                  .outputs_of_tile = 1,
                  .batch = v.batch,
                  .resident = kRowsResident,
                  .run = threads * 16,
                  .best_threads = 256};
    consider_pieces(
        v, cut, ceil_div<int64_t>(vectors, threads), v.clusters() && !runs,
        [&](int64_t pieces) { return ceil_div(vectors, pieces * threads); }, &choice);
  }
  Config& config = choice.config;
  if (config.pieces == 1 && fits_lone_rows(v)) {
    config.kernel = Kernel::kLoneRows;
    config.threads = lone_row_threads(vectors);
  }
  config.reason = config.pieces == 1   ? "rows: a block each"
                  : config.cluster > 1 ? "rows: a cluster each"
                                       : "few long rows: in pieces";
  if (runs) consider_thin(v, &choice);
  return config;
}

// Threads of an SM, where it was measured by the registers that columns take.
int columns_resident(const View& v) {
  const DType dtype = v.problem.in_dtype;
  if (v.kind == Kind::kProd && (dtype == DType::kF16 || dtype == DType::kF32)) return 640;
  if (v.kind == Kind::kSquares && dtype == DType::kBF16) return 640;
  if (v.kind == Kind::kSquares && dtype == DType::kF32) return 896;
  if (v.kind == Kind::kExtreme && v.element == 4) return 768;
  return v.vector > 4 ? 768 : 1024;
}

// If that is cheaper than what was chosen.
void consider_wrapped(const View& v, Choice* choice) {
  if (!fits_wrapped(v)) return;
  const int64_t columns = v.kept().size, stride = v.reduced().in_stride;
  const int64_t period = period_of(stride, v.vector), lanes = pow2_ceil(columns);
  const int64_t vectors = ceil_div((v.plan.extent - 1) * stride + columns, v.vector);
  Choice wrapped{.config = {.kernel = Kernel::kWrapped}, .cost = choice->cost};
  for (int threads = kFewestThreads; threads <= kColumnThreads; threads *= 2) {
    const Config alone{.kernel = Kernel::kWrapped, .threads = threads};
    if (threads < std::max(period, lanes)) continue;
    if (shared_bytes(alone, v.kind, v.problem.in_dtype) > kSharedBytes) continue;
    const int64_t busy = threads / period * period;
    const double unread = static_cast<double>(stride) / static_cast<double>(columns);
    const Cut cut{.threads = threads,
                  .lanes = static_cast<int>(lanes),
                  .tiles = v.plan.outputs / columns,
                  .outputs_of_tile = lanes,
                  .batch = v.batch,
                  .resident = v.four_byte_lanes() && v.vector <= 4
                                  ? 1024
                                  : std::min(768, columns_resident(v)),
                  .run = threads * 16,
                  .slower = (threads > kWidestLanes ? 1 : kSmallBlocksOfRun) * unread,
                  .end = kWrappedEnd,
                  .tiled = true};
    consider_pieces(
        v, cut, ceil_div<int64_t>(vectors, busy), false,
        [&](int64_t pieces) { return ceil_div(vectors, pieces * busy); }, &wrapped);
  }
  if (wrapped.cost >= choice->cost) return;
  *choice = wrapped;
  Config& config = choice->config;
  config.row_loads = period;
  config.vectors = static_cast<int>(config.threads / period);
  config.reason = "few columns: rows as one run";
}

Config wrapped_columns(const View& v) {
  Choice choice;
  consider_wrapped(v, &choice);
  consider_thin(v, &choice);
  return choice.config;
}

Config columns(const View& v) {
  const bool shifted = v.few_kernels() || !v.all_aligned(true) || v.plan.reduced.count > 1;
  const int64_t across = ceil_div(v.kept().size, v.vector);
  const int64_t outer = v.plan.outputs / v.kept().size;
  Cut cut{.batch = in_flight(Kernel::kFlat, v.kind, v.problem.in_dtype), .resident = kFlatResident};
  Choice choice;
  if (has_flat(v.problem.in_dtype) && !v.few_kernels() && !v.groups && outer * across < k31Bits &&
      v.plan.extent <= kMostFlatExtent) {
    choice.config.kernel = Kernel::kFlat;
    for (cut.threads = kFewestThreads; cut.threads <= kFlatThreads; cut.threads *= 2) {
      cut.lanes = 1, cut.tiles = ceil_div<int64_t>(outer * across, cut.threads), cut.pieces = 1;
      cut.loads = v.plan.extent + kFlatLoads;
      cut.run = 16 * std::min<int64_t>(across, cut.threads);
      choice.consider(cut, 1, false, v.estimate(cut));
    }
  }
  Choice tiled{.config = {.kernel = shifted ? Kernel::kShifted : Kernel::kColumns},
               .cost = choice.cost};
  // (What is 8 bytes takes blocks long to bring together, which only tall columns hide.)
  cut.large = v.bytes >= kLargeBytes && v.all_aligned(true, kLine) &&
              v.plan.extent >= (v.four_byte_lanes() ? kTallColumn : kTallestColumn);
  cut.tiled = true;
  cut.words_of_slot = v.kind == Kind::kArg ? 2 : 1;
  cut.resident = columns_resident(v);
  const DType result = reduce_output_dtype(v.problem.op, v.problem.in_dtype);
  if (stores_lanes(v.vector * element_size(result)) && v.bytes >= kFewestAloneBytes && !v.groups) {
    cut.end_alone = kAloneEnd;
  }
  if (shifted) cut.best_threads = 256, cut.resident = v.vector > 4 ? 512 : 1024;
  const auto widest = static_cast<int>(std::min<int64_t>(pow2_ceil(across), kWidestLanes));
  const int narrowest =
      std::max(cut.large ? std::min<int>(kLine / 16, widest) : 1, widest / kNarrowest);
  for (int lanes = widest; lanes >= narrowest; lanes /= 2) {
    const int fewest_threads = cut.large ? kWidestLanes : std::max(lanes, kFewestThreads);
    for (int threads = fewest_threads; threads <= kColumnThreads; threads *= 2) {
      const auto vector = static_cast<int>(v.vector);
      Config alone{.kernel = tiled.config.kernel, .threads = threads, .lanes = lanes};
      alone.one_shift = has_one_shift(alone, v.plan, vector);
      if (shared_bytes(alone, v.kind, v.problem.in_dtype) > kSharedBytes) alone.one_shift = false;
      if (shared_bytes(alone, v.kind, v.problem.in_dtype) > kSharedBytes) continue;
      Config largest = alone;
      largest.cluster = kMostCluster;
      const bool clusters = v.clusters() && !shifted && !v.groups && v.bytes < kClusteredBytes &&
                            shared_bytes(largest, v.kind, v.problem.in_dtype) <= kSharedBytes;
      // A tile that is as wide as the rows is read in one run.
      const bool whole_rows = !shifted && lanes == across && v.reduced().in_stride == v.kept().size;
      // Where so much is read that blocks of 512 threads do so 1 to 8 % faster. (Elsewhere they
      // gain nothing, and in wide rows they lose.)
      const bool stream = v.large_blocks() && !shifted &&
                          (whole_rows || (cut.large && v.plan.extent >= kTallestColumn));
      if (threads > kWidestLanes && !stream) continue;
      cut.threads = threads, cut.lanes = lanes, cut.run = 16 * (whole_rows ? threads : lanes);
      // Two loads and a shift for each 16 bytes take as long as four loads, of which fewer are
      // under way.
      const bool twice = shifted && !alone.one_shift;
      cut.batch = in_flight(alone.kernel, v.kind, v.problem.in_dtype) / (twice ? 2 : 1);
      const int64_t each = twice ? 4 : 1;
      cut.one_shift = alone.one_shift;
      cut.slower = threads > kWidestLanes || !stream ? 1
                   : whole_rows                      ? kSmallBlocksOfRun
                                                     : kSmallBlocksOfTiles;
      cut.tiles = outer * ceil_div<int64_t>(v.kept().size, tile_columns(alone, vector));
      cut.outputs_of_tile = lanes * v.vector;
      const int64_t groups = threads / lanes;
      consider_pieces(
          v, cut, ceil_div(v.plan.extent, groups), clusters,
          [&](int64_t pieces) { return each * ceil_div(v.plan.extent, pieces * groups); }, &tiled);
    }
  }
  if (tiled.cost < choice.cost) choice = tiled;
  Config& config = choice.config;
  config.reason = config.kernel == Kernel::kFlat ? "short columns: a thread each"
                  : config.pieces == 1           ? "columns"
                  : config.cluster > 1           ? "columns: a cluster each"
                                                 : "few columns: in pieces";
  consider_wrapped(v, &choice);
  consider_thin(v, &choice);
  return config;
}

// Rows at odd strides, of which the warps of one wave of blocks load all that there is at once.
bool fits_warp_columns(const View& v) {
  const int64_t tiles = ceil_div<int64_t>(v.plan.outputs, 32);
  return v.small() && v.element == 2 && v.plan.kept.count == 1 && v.plan.reduced.count == 1 &&
         !v.all_aligned(true) && kFewestWarpRows < v.plan.extent &&
         v.plan.extent <= kMostWarpRows && tiles >= v.device.sm_count &&
         tiles <= kWarpColumnsBlocks * v.device.sm_count;
}

Config warp_columns(const View& v) {
  return {.kernel = Kernel::kWarpColumns,
          .threads = kWarpColumnsThreads,
          .tiles = ceil_div<int64_t>(v.plan.outputs, 32),
          .reason = "columns at an odd stride: a warp has 32"};
}

Config strided(const View& v) {
  Config config{.kernel = Kernel::kStrided, .threads = kStridedThreads};
  const Plan& plan = v.plan;
  const int64_t sms = v.device.sm_count;
  const bool across = v.kept().size > 1 && !lies_inside(v.reduced(), v.kept());
  // Adjacent outputs to adjacent threads where their elements lie closest, or where an output has
  // too few for a block.
  int64_t lanes = across ? std::min<int64_t>(pow2_ceil(v.kept().size), 32) : 1;
  while (lanes < 32 && kStridedThreads / lanes >= 2 * plan.extent) lanes *= 2;
  config.lanes = static_cast<int>(lanes);
  config.tiles = ceil_div(plan.outputs, lanes);
  // Elements are small loads: every thread should have several in flight, and there should be many
  // threads.
  while (config.threads > 32 && config.threads / 2 / lanes * v.batch >= plan.extent) {
    config.threads /= 2;
  }
  if (config.tiles < 2 * sms && 2 * config.threads / lanes * v.batch <= plan.extent) {
    config.threads *= 2;
  }
  const int64_t batches = ceil_div<int64_t>(plan.extent, config.threads / lanes * v.batch);
  const int64_t slots = sms * (1024 / config.threads);  // two blocks of 512 threads an SM
  int64_t pieces = std::min(batches, slots / std::max<int64_t>(config.tiles, 1));
  if (batches <= kFewBatches) pieces = 1;  // a second launch would take longer
  config.pieces = std::max({pieces, ceil_div(plan.extent, kStridedPiece), int64_t{1}});
  config.mail = config.pieces * config.lanes <= kMostMail;
  config.reason = "strides that no wide load fits";
  return config;
}

// Rows of several short runs, such as [64, 256, 49] over the first and the last: columns over the
// outer dimension, of which each run's are one output.
bool fits_groups(const View& v) {
  const ReduceDim &kept = v.kept(), &inner = v.reduced();
  const int64_t columns = kept.size * inner.size;
  if (v.kind == Kind::kArg || v.plan.reduced.count != 2 || inner.in_stride != 1) return false;
  if (kept.in_stride != inner.size || kept.out_stride != 1) return false;
  if (v.plan.kept.count > Params::kMaxKept || 2 * columns <= v.vector) return false;
  if (v.plan.reduced[0].size * v.element < kFewestColumnBytes) return false;
  if (v.plan.extent >= k31Bits || v.plan.outputs * inner.size > kMostGroupColumns) return false;
  const int64_t run = inner.size * v.element, loads = inner.size % v.vector == 0 ? 2 : 1;
  const double fewest = kGroupBytesOfRun * static_cast<double>(run * loads);
  return run <= kMostGroupRun && v.bytes >= std::max(kFewestGroupBytes, fewest);
}

Config groups(const View& v) {
  const Plan of_columns = columns_of_groups(v.plan);
  Config config = columns({v.problem, of_columns, v.device, /*groups=*/true});
  config.group = static_cast<int>(v.reduced().size);
  config.reason = "short runs: columns first";
  return config;
}

Config choose(const View& v) {
  const int64_t extent = v.plan.extent;
  if (extent == 0) return strided(v);
  if (fits_copy(v)) return {.kernel = Kernel::kCopy, .reason = "one element each"};
  // Short rows of whole loads have a kernel, but for rare kinds.
  const bool whole = v.all_aligned(false) && extent % v.vector == 0 && !v.few_kernels();
  if (fits_thin(v) && (extent == 1 || (fits_rows(v) && !whole && extent <= kThinRow))) {
    return thin(v);
  }
  if (fits_groups(v)) return groups(v);
  if (fits_rows(v)) {
    return fits_short_rows(v) ? short_rows(v) : fits_team_rows(v) ? team_rows(v) : rows(v);
  }
  if (!fits_columns(v) || (v.few_columns() && !fits_wrapped(v))) {
    return fits_thin(v) && extent <= kThinStrided ? thin(v) : strided(v);
  }
  if (v.few_columns()) return wrapped_columns(v);
  if (fits_warp_columns(v)) return warp_columns(v);
  return columns(v);
}

}  // namespace

Config select_config(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device) {
  if (plan.outputs == 0) return {};
  const View view{problem, plan, device};
  Config config = choose(view);
  config.sm90 =
      view.clusters() && (config.kernel == Kernel::kRows || config.kernel == Kernel::kColumns);
  const bool short_ones = config.kernel == Kernel::kShortRows ||
                          config.kernel == Kernel::kRaggedRows ||
                          config.kernel == Kernel::kTeamRows;
  config.streams = short_ones || view.bytes < kStreamedBytes;
  config.workspace_bytes = workspace_bytes(problem, plan, config);
  return config;
}

}  // namespace xgemm::cuda::reduce
