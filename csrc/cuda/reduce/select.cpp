// Which kernel a reduction gets, and how it is cut up.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/math.h"
#include "cuda/reduce/params.h"
#include "cuda/reduce/problem.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int64_t k31Bits = int64_t{1} << 31;
constexpr int64_t kMostShortVectors = 512;  // of a row: 8 KB
constexpr int kShortThreads = 256, kColumnThreads = 256, kStridedThreads = 256;
constexpr int kMostRowThreads = 512;
constexpr int kShortWarps = kShortThreads / 32;
constexpr int kPortableCluster = 8, kMostCluster = 16;
constexpr int64_t kSharedBytes = 48 * 1024;
constexpr int64_t kFewBatches = 4;
constexpr int64_t kStridedPiece = int64_t{1} << 30;  // elements, at most

int64_t pow2_ceil(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

// The problem in the terms of the choice.
struct View {
  const ReduceProblem& problem;
  const Plan& plan;
  const DeviceInfo& device;
  Kind kind = kind_of(problem);
  int64_t element = element_size(problem.in_dtype);
  int64_t vector = 16 / element;  // elements
  int batch = in_flight(Kernel::kRows, kind, problem.in_dtype);

  const ReduceDim& kept() const { return plan.kept.innermost(); }
  const ReduceDim& reduced() const { return plan.reduced.innermost(); }
  bool clusters() const { return device.capability == 90 && has_sm90(kind, problem.in_dtype); }

  bool aligned(int64_t stride) const { return stride % vector == 0; }
  // Base and all strides but those of the innermost kept (columns) or reduced (rows) dimension.
  bool all_aligned(bool columns) const {
    if (reinterpret_cast<uintptr_t>(problem.in) % 16 != 0) return false;
    const ReduceDims &a = plan.kept, &b = plan.reduced;
    for (int d = 0; d < a.count - (columns ? 1 : 0); ++d) {
      if (a[d].size > 1 && !aligned(a[d].in_stride)) return false;
    }
    for (int d = 0; d < b.count - (columns ? 0 : 1); ++d) {
      if (b[d].size > 1 && !aligned(b[d].in_stride)) return false;
    }
    return true;
  }
  // At the worst alignment, where rows are not all aligned.
  int64_t vectors_of_row() const {
    const int64_t before = all_aligned(false) ? 0 : vector - 1;
    return ceil_div(plan.extent + before, vector);
  }
};

bool fits_rows(const View& v) {
  const Plan& plan = v.plan;
  if (v.reduced().in_stride != 1 || v.reduced().size == 1) return false;
  if (plan.kept.count > Params::kMaxKept || plan.reduced.count > 2) return false;
  if (v.vectors_of_row() >= k31Bits - 1) return false;
  if (v.kind == Kind::kArg && plan.extent >= k31Bits) return false;
  if (plan.reduced.count == 1) return true;
  return v.all_aligned(false) && v.reduced().size % v.vector == 0;
}

bool fits_short_rows(const View& v) {
  const Plan& plan = v.plan;
  if (plan.reduced.count != 1 || plan.kept.count > 2) return false;
  if (plan.kept.count == 2 && plan.outputs >= k31Bits) return false;
  const int64_t vectors = v.vectors_of_row();
  if (vectors > kMostShortVectors) return false;
  // A warp a row: there must be rows for all warps, unless a row is too short for a block.
  return vectors <= 32 || plan.outputs >= int64_t{v.device.sm_count} * kShortWarps;
}

bool fits_columns(const View& v) {
  const Plan& plan = v.plan;
  if (v.kept().in_stride != 1 || v.kept().size * 2 < v.vector) return false;
  if (plan.kept.count > Params::kMaxKept || plan.reduced.count > 2) return false;
  if (plan.extent >= k31Bits || plan.outputs / v.vector >= k31Bits / 2) return false;
  return true;
}

// Costs are in 16-byte loads of the busiest multiprocessor. A cluster's meeting and a second launch
// are counted as the loads that would take as long.
constexpr double kClusterCost = 1500, kMemoryCost = 4000;
constexpr int64_t kBusyBlock = 2048;   // loads from which on few threads leave memory idle
constexpr int64_t kBusyThreads = 700;  // of an SM
constexpr double kIdleCost = 1.1;

double cost_of(const View& v, int64_t blocks, int64_t loads_of_block, int threads) {
  const int64_t sms = v.device.sm_count;
  const auto loads = static_cast<double>(ceil_div(blocks, sms) * loads_of_block);
  const bool idle = blocks * threads < kBusyThreads * sms && loads_of_block >= kBusyBlock;
  return idle ? loads * kIdleCost : loads;
}

// How each of `tiles` is cut into pieces, and what that costs.
struct Split {
  int64_t pieces = 1;
  int cluster = 1;
  double cost = 0;
};

// loads(pieces): those of a block when there are so many pieces. `most` pieces have something to
// do; `room` blocks of `threads` are resident on the GPU.
template <typename Loads>
Split choose_split(const View& v, int64_t tiles, int64_t most, int64_t room, int most_cluster,
                   int threads, const Loads& loads) {
  Split best{1, 1, cost_of(v, tiles, loads(1), threads)};
  const auto consider = [&](int64_t pieces, int cluster, double extra) {
    const double cost = cost_of(v, tiles * pieces, loads(pieces), threads) + extra;
    if (cost < 0.95 * best.cost) best = {pieces, cluster, cost};
  };
  for (int c = 2; v.clusters() && c <= std::min<int64_t>(most_cluster, most); c *= 2) {
    consider(c, c, kClusterCost);
  }
  const int64_t pieces = std::min(most, room / std::max<int64_t>(tiles, 1));
  if (pieces > 1) consider(pieces, 1, kMemoryCost);
  return best;
}

Config short_rows(const View& v) {
  const bool whole =
      v.plan.kept.count == 1 && v.plan.extent % v.vector == 0 && v.all_aligned(false);
  Config config{.kernel = whole ? Kernel::kShortRows : Kernel::kRaggedRows,
                .threads = kShortThreads};
  const int64_t vectors = v.vectors_of_row();
  // The fewest loads that find nothing; teams of 8 and more read whole lines.
  double best = 0;
  for (const int lanes : {8, 16, 32, 4, 2, 1}) {
    if (lanes < 8 && vectors > lanes) break;
    const int64_t at_once =
        std::min<int64_t>(pow2_ceil(ceil_div<int64_t>(vectors, lanes)), v.batch);
    const int64_t rounds = ceil_div(vectors, lanes * at_once);
    if (rounds > 1 && lanes < 32) continue;  // rather more warps
    const double used =
        static_cast<double>(vectors) / static_cast<double>(lanes * at_once * rounds);
    if (used <= best * 1.01) continue;
    best = used;
    config.lanes = lanes, config.vectors = static_cast<int>(at_once);
  }
  const int64_t warps = ceil_div(v.plan.outputs, rows_of_warp(config, v.batch));
  while (config.threads > 32 && warps < int64_t{v.device.sm_count} * (config.threads / 32)) {
    config.threads /= 2;
  }
  config.tiles = ceil_div<int64_t>(warps, config.threads / 32);
  config.row_loads = vectors;
  config.reason = "short rows: several a warp";
  return config;
}

int row_threads(int64_t loads_of_block, int loads_of_thread) {
  return static_cast<int>(std::clamp<int64_t>(
      pow2_ceil(ceil_div<int64_t>(loads_of_block, loads_of_thread)), 64, kMostRowThreads));
}

Config rows(const View& v) {
  const bool runs = v.plan.reduced.count > 1;
  Config config{.kernel = runs ? Kernel::kRuns : Kernel::kRows, .tiles = v.plan.outputs};
  const int64_t vectors = v.vectors_of_row();
  const int64_t sms = v.device.sm_count;
  const auto loads = [&](int64_t pieces) { return ceil_div(vectors, pieces); };
  const int64_t most = ceil_div<int64_t>(vectors, 256);
  // Blocks of the most threads: one for each SM while all that they read is in flight, else two.
  const bool flat = v.plan.outputs * vectors <= sms * kMostRowThreads * v.batch;
  const int most_cluster = runs ? 1 : sms >= 4 * kMostCluster ? kMostCluster : kPortableCluster;
  const Split split = choose_split(v, v.plan.outputs, most, flat ? sms : 2 * sms, most_cluster,
                                   kMostRowThreads, loads);
  config.pieces = split.pieces, config.cluster = split.cluster;
  // As many loads of a thread as are in flight, or half of them where blocks are few.
  const bool many = v.plan.outputs * split.pieces >= 4 * sms;
  config.threads = row_threads(loads(split.pieces), many ? v.batch : (v.batch + 1) / 2);
  config.reason = split.pieces == 1   ? "rows: a block each"
                  : split.cluster > 1 ? "rows: a cluster each"
                                      : "few long rows: in pieces";
  return config;
}

Config columns(const View& v) {
  const bool shifted = !v.all_aligned(true) || v.plan.reduced.count > 1;
  Config config{.kernel = shifted ? Kernel::kShifted : Kernel::kColumns};
  const int batch = in_flight(config.kernel, v.kind, v.problem.in_dtype);
  const int64_t vectors = ceil_div(v.kept().size, v.vector);
  const int64_t outer = v.plan.outputs / v.kept().size;
  // What fits into shared memory at the largest cluster.
  auto widest = static_cast<int>(std::min<int64_t>(pow2_ceil(vectors), 32));
  const auto bytes = [&](int lanes) {
    const Config whole{.threads = kColumnThreads, .lanes = lanes, .cluster = kPortableCluster};
    return shared_bytes(whole, v.kind, static_cast<int>(v.vector));
  };
  while (bytes(widest) > kSharedBytes) widest /= 2;
  double best = 0;
  for (int lanes = widest; lanes >= std::min(widest, 8); lanes /= 2) {
    const int64_t tiles = outer * ceil_div<int64_t>(vectors, lanes);
    int threads = kColumnThreads;  // fewer for few rows
    while (threads > 32 && int64_t{threads} / 2 / lanes * batch >= v.plan.extent) threads /= 2;
    const int64_t most = ceil_div<int64_t>(v.plan.extent, threads / lanes * 4);
    const auto loads = [&](int64_t pieces) { return ceil_div(v.plan.extent, pieces) * lanes; };
    const int64_t room = int64_t{v.device.sm_count} * 3;
    const Split split =
        choose_split(v, tiles, most, room, shifted ? 1 : kPortableCluster, threads, loads);
    if (best > 0 && split.cost >= 0.97 * best) continue;
    best = split.cost;
    config.lanes = lanes, config.threads = threads, config.tiles = tiles;
    config.pieces = split.pieces, config.cluster = split.cluster;
  }
  config.reason = config.pieces == 1   ? "columns"
                  : config.cluster > 1 ? "columns: a cluster each"
                                       : "few columns: in pieces";
  return config;
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
  int64_t pieces = std::min(batches, 4 * sms / std::max<int64_t>(config.tiles, 1));
  if (batches <= kFewBatches) pieces = 1;  // a second launch would take longer
  config.pieces = std::max({pieces, ceil_div(plan.extent, kStridedPiece), int64_t{1}});
  config.reason = "strides that no wide load fits";
  return config;
}

Config choose(const View& v) {
  if (v.plan.extent == 0 || strided_only(v.kind, v.problem.in_dtype)) return strided(v);
  if (fits_rows(v)) return fits_short_rows(v) ? short_rows(v) : rows(v);
  return fits_columns(v) ? columns(v) : strided(v);
}

}  // namespace

Config select_config(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device) {
  if (plan.outputs == 0) return {};
  const View view{problem, plan, device};
  Config config = choose(view);
  config.sm90 =
      view.clusters() && (config.kernel == Kernel::kRows || config.kernel == Kernel::kColumns);
  if (config.pieces > config.cluster) {
    config.workspace_bytes = config.pieces * plan.outputs * accumulator_bytes(view.kind);
  }
  return config;
}

std::string explain(const Plan& plan, const Config& config) {
  constexpr const char* kNames[] = {"short rows", "ragged rows",     "rows",   "runs",
                                    "columns",    "shifted columns", "strided"};
  std::string text = "kernel: ";
  text += kNames[static_cast<int>(config.kernel)];
  text += ", " + std::to_string(config.tiles) + " x " + std::to_string(config.pieces) +
          " blocks of " + std::to_string(config.threads) + " threads";
  if (config.kernel != Kernel::kRows && config.kernel != Kernel::kRuns)
    text += ", " + std::to_string(config.lanes) + " lanes";
  if (config.kernel == Kernel::kShortRows || config.kernel == Kernel::kRaggedRows) {
    text += ", " + std::to_string(config.vectors) + " loads a row";
  }
  if (config.cluster > 1) text += ", clusters of " + std::to_string(config.cluster);
  text += "\noutputs: " + std::to_string(plan.outputs) + " of " + std::to_string(plan.extent) +
          " elements each";
  text += std::string("\nwhy: ") + config.reason + "\n";
  return text;
}

}  // namespace xgemm::cuda::reduce
