#include "cuda/w4a16/sm90/skinny/select.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/w4a16/sm90/most_clusters.h"
#include "cuda/w4a16/sm90/skinny/split.h"

namespace xgemm::cuda::w4a16::sm90::skinny {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// Least squares of the logarithm over the candidates near the best of each of 1,894 products on an
// H200, cold (as `sweep_w4a16.py tune --least-squares` does it; seeds 29110602, 701, 702 and 703,
// groups of 128); so they are a fit's numbers, and not each of them that of the thing it is named
// after.
constexpr double kGpuBytesPerUs = 6.202e6;  // that all SMs read from memory
constexpr double kLatencyUs = 0.4074;       // of memory: how long what an SM has asked for takes
constexpr double kInstructionsPerUs = 1.564e4;  // of an SM
constexpr double kFineFactor = 1.3;  // of instructions, for groups of fewer than 128 channels
// Of X in perm's order, which each CTA picks up by single elements before anything else. (H200,
// 1, 4 and 8 rows: 6144x4096 in halves of K 1.5, 2.9 and 4.7 us, 8192x8192 in halves 2.5, 4.2 and
// 7.3.)
constexpr double kPermUs = 0.9, kPermRowUs = 0.2, kPermElementUs = 1.4e-4;
// A launch, and a CTA until its first operands are there and after its last ones are.
constexpr double kStartUs = 5.9;
// Bytes of X from L2, before anything else can be done; by how much X is late for each copy of
// weights that is on its way, of one row.
constexpr double kXBytesPerUs = 4.832e4, kAheadUs = 0.005332;
// Instructions of a unit's strip: to dequantize it, and for each mma tile of X; with which a warp
// leaves the sums of an mma tile.
constexpr double kDequant = 58.04, kMma = 38.15, kHandOver = 78.53;
constexpr double kUnitUs = 0.247;         // how long one warp takes for a unit
constexpr double kLastUnitUs = 0.008629;  // for each unit of a warp
constexpr double kDelay = 1.863;          // of what is issued: what hides under nothing
constexpr double kClusterDoublingUs = 0.2518, kClusterWait = 0.0001567;  // the latter of all that

constexpr int kStages[] = {1, 2, 3, 4, 6};
constexpr int kMaxPipelineBytes = 100 << 10;  // worth trying
constexpr int64_t kMaxExtent = int64_t{1} << 30;

Split make_split(const w4::Layout& layout, int rows, int cluster, int strips) {
  return {.rows = rows,
          .warps = 1,
          .stages = 1,
          .cluster = cluster,
          .strips = strips,
          .units = static_cast<int>(layout.units()),
          .piece_bytes = static_cast<int>(strips * layout.strip_bytes()),
          .fine = layout.groups_per_unit() > 1};
}

Estimate estimate_of(const Split& split, const Waves& waves, int64_t strips, bool perm,
                     const choose::DeviceConstants& gpu) {
  const double extra = waves.extra > 0 ? static_cast<double>(waves.extra_strips) / split.strips : 0;
  const double units = split.most_units() * (waves.each + extra);  // of an SM
  // A single strip takes as many instructions as a tile.
  const double units_of_warp = ceil_div(split.most_units(), split.warps) * waves.most();
  const int mma_tiles = ceil_div(split.rows, kMmaRows);
  const double factor = split.fine ? kFineFactor : 1.0;
  const double pipeline = static_cast<double>(split.warps) * split.stages * split.piece_bytes;
  const double memory = static_cast<double>(strips * split.units) * split.piece_bytes /
                        split.strips / (kGpuBytesPerUs * gpu.dram_speed);
  const double copies = units * split.piece_bytes * kLatencyUs / pipeline;
  const double instructions =
      split.strips * units_of_warp * factor * (kDequant + kMma * mma_tiles) +
      waves.most() * mma_tiles * kHandOver;
  const double issue = instructions * split.warps / (kInstructionsPerUs * gpu.clock_speed);
  const double one_warp = units_of_warp * factor * kUnitUs;
  const int doublings = std::countr_zero(static_cast<unsigned>(split.cluster));
  const double x_bytes = split.rows * split.most_units() * (w4::kUnitK * 2.0);
  const double first_us = x_bytes / kXBytesPerUs;
  // The longest, and more where others are close.
  const auto fourth = [](double x) { return x * x * x * x; };
  const double busy =
      std::sqrt(std::sqrt(fourth(memory) + fourth(copies) + fourth(issue) + fourth(one_warp)));
  const double cluster_us = kClusterDoublingUs * doublings;
  double us = kStartUs + first_us + busy * (1 + kClusterWait * doublings) + kDelay * issue +
              kLastUnitUs * ceil_div(split.most_units(), split.warps) +
              kAheadUs * split.warps * split.stages * std::sqrt(static_cast<double>(split.rows)) +
              cluster_us;
  double perm_us = 0;
  if (perm) {
    perm_us =
        kPermUs + split.rows * (kPermRowUs + kPermElementUs * (split.most_units() * w4::kUnitK));
    us += perm_us;
  }
  return {.us = us,
          .parts = {.launch = kStartUs,
                    .first_bytes = first_us + perm_us,
                    .dram = memory,
                    .intake = copies,
                    .issue = std::max(issue, one_warp),
                    .exchange = cluster_us}};
}

class Model {
 public:
  using Candidate = Config;

  Model(const Problem& problem, const DeviceInfo& device)
      : p_(problem),
        device_(device),
        gpu_(choose::constants_of(device)),
        strips_(static_cast<int>(ceil_div<int64_t>(problem.weight.layout.n, w4::kStripColumns))) {}

  template <typename Search>
  void candidates(Search& search) const {
    of_tiles(kNarrowStrips, search);
    if (p_.m <= kMmaRows && is_plain(p_)) of_tiles(kWideStrips, search);
  }

  Estimate estimate(const Config& c, double) const {
    const Waves waves = share_tiles(strips_, c.clusters, c.split.strips);
    return estimate_of(c.split, waves, strips_, p_.perm != nullptr, gpu_);
  }

  static Choice choice(const Config& config) {
    return {.config = config, .reason = "few rows: a stream over the weight"};
  }

 private:
  // With tiles of so many strips.
  template <typename Search>
  void of_tiles(int tile_strips, Search& search) const {
    const w4::Layout& layout = p_.weight.layout;
    for (int cluster = 1; cluster <= kMaxCluster; cluster *= 2) {
      const Split split = make_split(layout, static_cast<int>(p_.m), cluster, tile_strips);
      const int most = most_clusters(device_, cluster);
      if (split.units < cluster || most == 0) continue;
      const Waves of_all = share_tiles(strips_, most, tile_strips);
      of_warps({split, of_all.each > 0 ? most : of_all.extra}, search);
    }
  }

  // Warps that have the same number of units, or nearly.
  template <typename Search>
  static void of_warps(Config config, Search& search) {
    Split& split = config.split;
    const int units = split.most_units(), most_of_warps = most_warps(split.mma_tiles(), split.fine);
    int tried = 0;
    for (int each = ceil_div(units, most_of_warps); each <= units && tried < 3; ++each) {
      if (ceil_div(units, each) == split.warps && tried > 0) continue;
      split.warps = ceil_div(units, each);
      bool fits = false;
      for (const int stages : kStages) {
        split.stages = stages;
        if (stages > 2 && split.warps * stages * split.piece_bytes > kMaxPipelineBytes) break;
        if (split.plan().bytes > kSmemBytes) break;
        fits = true;
        search.consider(config);
      }
      tried += fits ? 1 : 0;
    }
  }

  const Problem& p_;
  const DeviceInfo& device_;
  const choose::DeviceConstants& gpu_;
  int strips_;
};

}  // namespace

std::optional<Scored<Choice>> select(const Problem& p, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  const w4::Layout& layout = p.weight.layout;
  const bool takes_type = p.dtype == DType::kF16 || p.dtype == DType::kBF16;
  if (device.capability != 90 || !takes_type) return std::nullopt;
  // The kernel for any number of rows sums in another order.
  if (p.batch_invariant) return std::nullopt;
  if (p.m == 0 || layout.n == 0 || layout.k == 0) return std::nullopt;
  if (p.m > kMmaRows * most_mma_tiles(layout.groups_per_unit() > 1)) return std::nullopt;
  if (layout.n > kMaxExtent || layout.k > kMaxExtent) return std::nullopt;
  return choose::pick<Choice>(Model(p, device), listing);
}

}  // namespace xgemm::cuda::w4a16::sm90::skinny
