#include "cuda/gemm/sm90/rows/select.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "common/math.h"
#include "cuda/gemm/sm90/rows/tile.h"
#include "cuda/gemm/sm90/rows/view.h"

namespace xgemm::cuda::gemm::sm90::rows {
namespace {

// Measured on an H200, cold L2: 4096x4096 to 28672x4096, M = 1 to 128, every shape below.
constexpr double kLaunchUs = 4.2;    // and what the first loads take
constexpr double kRampUs = 2.7;      // more, until memory is read at its full rate ...
constexpr double kRampBytes = 16e6;  // ... for problems of this size on
constexpr double kMemoryBytesPerUs = 4.1e6;
constexpr double kKeptInL2 =
    1.2;  // W that is read again takes the place of what L2 must write back
constexpr double kSmBytesPerUs = 80e3;     // that one SM takes in, from memory and L2
constexpr double kL2UsPerByte = 0.025e-6;  // of what is read again, on top of the time for memory
constexpr double kUnevenness = 0.2;  // of the excess of the longest queue of tiles, what costs
constexpr double kIdleness = 0.1;    // of the share of SMs without a tile
// An SM's clock, less what the multiplying warpgroups wait; and of one wgmma, for its rows of W.
constexpr double kCyclesPerUs = 1450, kLeastWgmmaCycles = 24;
constexpr double kStageUs = 0.02;  // of a stage of the ring, in one tile's share of K

// Of a cluster that splits K in 1, 2, 4 and 8.
struct Splitting {
  int splits;
  double sm_share;  // of the SMs that such clusters find room on: GPCs are not multiples of four
  double us;        // more than for one CTA
  double exchange_bytes_per_us;
};
constexpr Splitting kSplittings[] = {
    {1, 1.0, 0, 1}, {2, 1.0, 0, 30e3}, {4, 0.92, 0.8, 12e3}, {8, 0.92, 1.5, 12e3}};

// What is in flight for an SM where X is small: at least so much, in so many stages. More only
// delays the first tiles' last bytes.
constexpr int kEnoughBytes = 128 * 1024, kEnoughStages = 5;

int64_t clusters_of(const DeviceInfo& device, const Splitting& splitting) {
  return static_cast<int64_t>(device.sm_count * splitting.sm_share) / splitting.splits;
}

struct Candidate {
  int rows, columns;
  Splitting splitting;
};

class Chooser {
 public:
  Chooser(const Problem& p, const DeviceInfo& device)
      : problem_(p), device_(device), view_(view_of(p)) {}

  bool choose(Config* config, double* estimate_us) {
    for (const Splitting& splitting : kSplittings) {
      if (splitting.splits > 1 && problem_.k < splitting.splits * 128) break;
      if (clusters_of(device_, splitting) == 0) break;
      for (const int columns : kColumns) {
        if (columns_fit(columns)) consider_rows(columns, splitting);
      }
    }
    if (best_us_ == std::numeric_limits<double>::infinity()) return false;
    *config = config_of(best_);
    *estimate_us = best_us_;
    return true;
  }

 private:
  // One tile over all of a small narrow side; else the widths that read W the fewest times.
  bool columns_fit(int columns) const {
    constexpr int kMost = std::end(kColumns)[-1], kLeastOfMany = 48;
    if (!view_.narrow.k_major && columns % kSwizzleElements != 0) return false;
    const int64_t extent = view_.narrow.extent;
    if (extent > kMost) return columns >= kLeastOfMany;
    const int granule = view_.narrow.k_major ? 8 : kSwizzleElements;
    return *std::ranges::lower_bound(kColumns, round_up<int64_t>(extent, granule)) == columns;
  }

  // Tiles that give every cluster the same number of them, in as few turns as can be or a few more.
  void consider_rows(int columns, const Splitting& splitting) {
    constexpr int kMost = kMostWarpgroups * kWarpgroupRows, kMoreTurns = 3;
    for (const int rows : {kWarpgroupRows, kMost}) consider({rows, columns, splitting});
    if (!view_.wide.k_major) return;  // loaded 64 rows at once
    const int64_t extent = view_.wide.extent;
    const int64_t others = ceil_div<int64_t>(view_.narrow.extent, columns) * view_.batch;
    const int64_t clusters = clusters_of(device_, splitting);
    const int64_t fewest = ceil_div(ceil_div<int64_t>(extent, kMost) * others, clusters);
    for (int64_t turns = fewest; turns <= fewest + kMoreTurns; ++turns) {
      const int64_t wide_tiles = std::max<int64_t>(1, clusters * turns / others);
      const int64_t rows = round_up<int64_t>(ceil_div(extent, wide_tiles), 8);
      // A box of few rows costs the producer as much as one of many.
      if (rows < (turns == 1 ? 32 : 48)) break;
      if (rows <= kMost) consider({static_cast<int>(rows), columns, splitting});
    }
  }

  void consider(const Candidate& candidate) {
    const double us = estimate(candidate);
    if (us < best_us_) best_us_ = us, best_ = candidate;
  }

  int64_t tiles_of(const Candidate& c) const {
    return ceil_div<int64_t>(view_.wide.extent, c.rows) *
           ceil_div<int64_t>(view_.narrow.extent, c.columns) * view_.batch;
  }

  double estimate(const Candidate& c) const {
    const auto tiles = static_cast<double>(tiles_of(c));
    const auto clusters = std::min(tiles, static_cast<double>(clusters_of(device_, c.splitting)));
    const double turns =
        static_cast<double>(ceil_div(static_cast<int64_t>(tiles), static_cast<int64_t>(clusters)));
    const auto k = static_cast<double>(problem_.k);
    const auto wide = static_cast<double>(view_.wide.extent);
    const auto narrow = static_cast<double>(view_.narrow.extent);
    const auto batch = static_cast<double>(view_.batch);
    const double wide_bytes = 2 * wide * k * (view_.wide.batch_stride != 0 ? batch : 1);
    const double memory = wide_bytes + 2 * batch * wide * narrow +
                          2 * narrow * k * (view_.narrow.batch_stride != 0 ? batch : 1);
    const double again =
        tiles * 2 * k * (c.rows + std::min<double>(c.columns, narrow)) - wide_bytes;
    const double memory_us =
        memory / kMemoryBytesPerUs * (narrow > c.columns ? kKeptInL2 : 1.0) *
            (1 + kUnevenness * (turns * clusters / tiles - 1) +
             kIdleness * (1 - clusters * c.splitting.splits / device_.sm_count)) +
        std::max(0.0, again) * kL2UsPerByte;
    const double k_of_cta = turns * k / c.splitting.splits;
    const double intake_us = k_of_cta * 2 * (c.rows + c.columns) / kSmBytesPerUs;
    const double multiply_us = k_of_cta / 16 * warpgroups_of(c.rows) *
                               std::max(c.columns / 2.0, kLeastWgmmaCycles) / kCyclesPerUs;
    const double stages =
        k / c.splitting.splits / (64 * boxes_of(warpgroups_of(c.rows), c.columns));
    const double exchanged =
        turns * 4 * c.rows * c.columns * (c.splitting.splits - 1) / c.splitting.splits;
    return kLaunchUs + kRampUs * std::min(1.0, memory / kRampBytes) +
           std::max({memory_us, intake_us, multiply_us}) + kStageUs * stages +
           stage_bytes(c.rows, c.columns) / kSmBytesPerUs + c.splitting.us +
           exchanged / c.splitting.exchange_bytes_per_us;
  }

  Config config_of(const Candidate& c) const {
    const int stage = stage_bytes(c.rows, c.columns);
    const int most = (kMostSmemBytes - beside_ring_bytes(c.rows, c.columns)) / stage;
    const int enough = c.columns <= 16 ? std::max(kEnoughStages, kEnoughBytes / stage) : most;
    const int64_t clusters = std::min(tiles_of(c), clusters_of(device_, c.splitting));
    return {.kernel = Kernel::kSm90Rows,
            .block_m = c.rows,
            .block_n = c.columns,
            .stages = std::min({most, enough, kMostStages}),
            .cluster = c.splitting.splits,
            .splits = c.splitting.splits,
            .ctas = static_cast<int>(clusters) * c.splitting.splits,
            .reason = "a stream over the wide operand, the same share of it for every SM"};
  }

  const Problem& problem_;
  const DeviceInfo& device_;
  View view_;
  Candidate best_{};
  double best_us_ = std::numeric_limits<double>::infinity();
};

}  // namespace

bool select(const Problem& p, const DeviceInfo& device, Config* config, double* estimate_us) {
  // Beyond this many rows and columns the kernel has nothing over that of sm90/.
  constexpr int64_t kMostNarrow = 2048, kMostTiles = int64_t{1} << 30;
  if (device.capability != 90 || p.dtype == DType::kF32 || p.k == 0) return false;
  if (p.alpha != 1.0f || p.beta != 0.0f || p.batch_dims > 1) return false;
  if (!extents_fit_tma(p) || !a_fits_tma(p) || !b_fits_tma(p)) return false;
  const int64_t batch = p.batch_dims > 0 ? p.batch[0].size : 1;
  if (std::min(p.m, p.n) > kMostNarrow) return false;
  if (ceil_div<int64_t>(p.m, 32) * ceil_div<int64_t>(p.n, 8) * batch > kMostTiles) return false;
  return Chooser(p, device).choose(config, estimate_us);
}

}  // namespace xgemm::cuda::gemm::sm90::rows
