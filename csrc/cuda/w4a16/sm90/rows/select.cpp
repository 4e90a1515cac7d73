#include "cuda/w4a16/sm90/rows/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"

namespace xgemm::cuda::w4a16::sm90::rows {
namespace {

// Of a launch, and of a CTA until its first operands are there; then what all SMs read from memory
// (a line through the measured times of reads, from 8 to 240 MB).
constexpr double kStartUs = 4.8, kGpuBytesPerUs = 4.2e6;
constexpr double kSmBytesPerUs = 36e3;  // by one: W from memory, X from L2
// Clusters: a later start, and sums that travel to other CTAs.
constexpr double kClusterUs = 0.4, kClusterDoublingUs = 0.2;
constexpr double kTileUs = 0.3;  // of those who add up the parts of a tile

constexpr int64_t kMostExtent = int64_t{1} << 30;
constexpr int kRingBytes = 72 << 10;  // under way in a CTA: more does not help

// Of the inner loops, by mma tiles: warps that take k (more of them hide more, but registers bound
// them), and their instructions for a unit of a tile and for handing over the sums of a run.
struct Kind {
  int warps, unit, hand_over;
};
constexpr Kind kKinds[kMostMmaTiles] = {{16, 245, 115}, {12, 315, 145}, {8, 375, 195}};
constexpr Kind kFineKinds[kMostMmaTiles] = {{16, 370, 115}, {12, 480, 145}, {8, 570, 195}};
constexpr double kInstructionsPerUs = 4 * 1650 * 0.85;  // of an SM's schedulers, with stalls

const Kind& kind_of(const w4::Layout& layout, int rows) {
  return (layout.groups_per_unit() > 1 ? kFineKinds : kKinds)[ceil_div(rows, kMmaRows) - 1];
}

// Clusters that an H100 or H200 runs at once. Its SMs lie in groups of 16 or 18, so that the last
// ones of a group hold no cluster of 4 or 8; launch() asks the GPU itself.
int most_clusters(const DeviceInfo& device, int cluster) {
  return cluster <= 2 ? device.sm_count / cluster : device.sm_count * 32 / 33 / cluster;
}

int stages_for(const Split& split) {
  const int one = split.warps * split.piece_bytes;
  return std::clamp(kRingBytes / one, 2, kMostStages);
}

// What a launch of `turns` tiles a cluster takes at least, however K is cut into runs.
double estimate_copies(const Split& split, int64_t tiles, int turns) {
  const double all = static_cast<double>(tiles * split.units) * split.piece_bytes;
  const double x = static_cast<double>(split.rows * split.x_pitch());
  const double w = static_cast<double>(turns) * split.most_units() * split.piece_bytes;
  return std::max({all / kGpuBytesPerUs, (w + x) / kSmBytesPerUs, turns * kTileUs});
}

double estimate_arithmetic(const Split& split, const Kind& kind, int turns) {
  const int64_t rounds = ceil_div(int64_t{turns} * split.most_parts(), int64_t{split.warps});
  const double run = static_cast<double>(split.run) * kind.unit + kind.hand_over;
  return static_cast<double>(rounds * split.warps) * run / kInstructionsPerUs;
}

double cluster_us(int cluster) {
  double us = kStartUs;
  if (cluster > 1) us += kClusterUs;
  for (; cluster > 1; cluster /= 2) us += kClusterDoublingUs;
  return us;
}

Split make_split(const w4::Layout& layout, int rows, int warps, int cluster) {
  return {.rows = rows,
          .warps = warps,
          .stages = 0,
          .cluster = cluster,
          .run = 1,
          .units = static_cast<int>(layout.units()),
          .piece_bytes = static_cast<int>(kTileStrips * layout.strip_bytes())};
}

}  // namespace

Split split_of(const Problem& problem, const Config& config) {
  Split split = make_split(problem.weight.layout, config.block_m, config.warps, config.cluster);
  split.stages = config.stages;
  split.run = config.run;
  return split;
}

bool select(const Problem& p, const DeviceInfo& device, Config* config, double* estimate_us) {
  const w4::Layout& layout = p.weight.layout;
  if (device.capability != 90 || (p.dtype != DType::kF16 && p.dtype != DType::kBF16)) return false;
  if (p.m == 0 || p.m > kMostRows || layout.n == 0 || layout.k == 0) return false;
  if (layout.n > kMostExtent || layout.k > kMostExtent) return false;

  // The partition of K decides a row's bits: where they must not depend on M, it is the one for as
  // many rows as there may be.
  const int rows = p.batch_invariant ? kMostRows : static_cast<int>(p.m);
  const Kind& kind = kind_of(layout, rows);
  const int64_t tiles = ceil_div<int64_t>(layout.n, kTileColumns);
  *estimate_us = std::numeric_limits<double>::infinity();
  for (int cluster = 1; cluster <= kMostCluster; cluster *= 2) {
    Split split = make_split(layout, rows, kind.warps, cluster);
    const int clusters = static_cast<int>(std::min<int64_t>(tiles, most_clusters(device, cluster)));
    if (split.units < cluster || clusters == 0) continue;
    const int turns = static_cast<int>(ceil_div<int64_t>(tiles, clusters));
    const double copies = estimate_copies(split, tiles, turns), start = cluster_us(cluster);
    if (start + copies >= *estimate_us) continue;
    split.stages = stages_for(split);
    // Long runs are seldom handed over; short ones are shared out evenly.
    for (int parts = kind.warps; parts >= 1; parts /= 2) {
      split.run = ceil_div(split.most_units(), parts);
      const double arithmetic = estimate_arithmetic(split, kind, turns);
      // What hides under the copies still costs a little.
      const double us = start + std::max(copies, arithmetic) + 0.1 * arithmetic;
      if (us >= *estimate_us || split.plan().bytes > kSmemBytes) continue;
      *estimate_us = us;
      *config = {.kernel = Kernel::kSm90Rows,
                 .block_m = static_cast<int>(p.m),
                 .block_n = kTileColumns,
                 .warps = split.warps,
                 .stages = split.stages,
                 .cluster = cluster,
                 .run = split.run,
                 .ctas = clusters * cluster,
                 .workspace_bytes = 0,
                 .reason = "few rows: a stream over the weight"};
    }
  }
  return *estimate_us < std::numeric_limits<double>::infinity();
}

}  // namespace xgemm::cuda::w4a16::sm90::rows
