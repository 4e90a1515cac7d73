#include "cuda/w4a16/sm90/wgmma/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"
#include "cuda/w4a16/sm90/wgmma/tile.h"
#include "cuda/w4a16/sm90/wgmma/tma_fit.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {
namespace {

struct Shape {
  int consumers, rows;
};
#define XGEMM_W4_WGMMA_TILE(CONSUMERS, ROWS) {CONSUMERS, ROWS},
constexpr Shape kShapes[] = {XGEMM_W4_WGMMA_TILES(XGEMM_W4_WGMMA_TILE)};
#undef XGEMM_W4_WGMMA_TILE

// Of a launch, and of a CTA until its first operands are there.
constexpr double kLaunchUs = 3.1, kStartUs = 2.0;
constexpr double kCyclesPerUs = 1650;     // the clock that an H200 holds under load
constexpr double kGpuBytesPerUs = 4.2e6;  // from memory, by all SMs
constexpr double kSmBytesPerCycle = 40;   // that one takes in, from memory and L2
constexpr double kTensorShare = 0.97;     // of the tensor cores' rate that the main loop holds
constexpr double kIssueCycles = 190;      // of a warp for a unit, of 128 k
// Of what does not bind, that it still costs.
constexpr double kIssueDelay = 0.2, kDelay = 0.05;
constexpr double kTileCycles = 600;            // between two tiles
constexpr double kStoreCyclesPerRow = 8;       // of the last tile, which nothing hides
constexpr double kExchangeCycles = 1200;       // of a tile whose K is shared ...
constexpr double kExchangeBytesPerCycle = 16;  // ... and of what is sent
constexpr double kFlagCycles = 2000;           // of sums that are left for others, ...
constexpr double kL2BytesPerCycle = 24;        // ... written and read
// Of copying x so that TMA can read it.
constexpr double kCopyLaunchUs = 2.5, kCopyBytesPerUs = 3e6;

constexpr int64_t kMostExtent = INT32_MAX - 1024, kMostUnits = INT32_MAX;

// Clusters that an H100 or H200 runs at once. Its SMs lie in groups of 16 or 18, so that the last
// ones of a group hold no cluster of 4 or 8; the launch asks the GPU itself.
int64_t most_clusters(const DeviceInfo& device, int cluster) {
  return cluster <= 2 ? device.sm_count / cluster : device.sm_count * 32 / 33 / cluster;
}

struct Candidate {
  Shape shape;
  int sharers, splits;
  bool even_shares;
};

class Chooser {
 public:
  Chooser(const w4::Layout& layout, int64_t m, const DeviceInfo& device)
      : layout_(layout), m_(m), device_(device) {}

  // `splits`: of K, or 0 for any way to share it.
  bool choose(int splits) {
    for (const Shape& shape : kShapes) {
      for (int sharers = 1; sharers <= 2; ++sharers) {
        for (int parts = 1; parts <= kMostSplits; parts *= 2) {
          if (splits == 0 || parts == splits) consider({shape, sharers, parts, false});
        }
        if (splits == 0) consider({shape, sharers, 1, true});
      }
    }
    return us_ < std::numeric_limits<double>::infinity();
  }

  const Candidate& best() const { return best_; }
  double us() const { return us_; }

  int64_t tiles_of(const Candidate& c) const {
    return ceil_div<int64_t>(m_, c.shape.rows) *
           ceil_div<int64_t>(layout_.n, c.shape.consumers * kWarpgroupColumns * c.sharers);
  }

 private:
  void consider(const Candidate& c) {
    const auto [shape, sharers, splits, even_shares] = c;
    if (even_shares) {
      const int64_t units = tiles_of(c) * layout_.units();
      if (units < most_clusters(device_, sharers) || units > kMostUnits) return;
    }
    if (splits > 1 && (!may_split(shape.consumers, shape.rows) || layout_.units() < splits)) return;
    if (most_clusters(device_, sharers * splits) == 0 || tiles_of(c) > UINT32_MAX / 2) return;
    const double us = estimate(c);
    if (us < us_) us_ = us, best_ = c;
  }

  double estimate(const Candidate& c) const {
    const auto [shape, sharers, splits, even_shares] = c;
    const int64_t tiles = tiles_of(c);
    const int64_t clusters = most_clusters(device_, sharers * splits);
    const auto turns = static_cast<double>(ceil_div(tiles, clusters));
    const auto units = static_cast<double>(ceil_div<int64_t>(layout_.units(), splits));
    const double unit_bytes = static_cast<double>(layout_.unit_bytes()) * shape.consumers;
    const double x_bytes = 2.0 * w4::kUnitK * shape.rows;
    // m64nNk16 takes N / 2 cycles.
    const double tensor = shape.consumers * 8 * (shape.rows / 2.0) / kTensorShare;
    const double issue = shape.consumers * kIssueCycles;
    const double intake = (unit_bytes + x_bytes / sharers) / kSmBytesPerCycle;
    // Each of them delays the others a little.
    const double unit =
        std::max({tensor, issue, intake}) + kIssueDelay * issue + kDelay * (tensor + intake);
    const double sent = 4.0 * kWarpgroupColumns * shape.consumers * shape.rows;
    double cycles = kStoreCyclesPerRow * shape.rows / splits;
    if (even_shares) {
      const double share = static_cast<double>(tiles * layout_.units()) / clusters;
      cycles +=
          share * unit + (turns + 1) * kTileCycles + kFlagCycles + 2 * sent / kL2BytesPerCycle;
    } else {
      double tile = units * unit + kTileCycles;
      if (splits > 1) tile += kExchangeCycles + sent / kExchangeBytesPerCycle;
      cycles += turns * tile;
    }
    const double sm_us = cycles / kCyclesPerUs;
    // SMs without work, and those that wait for the last ones, do not read.
    const double busy =
        static_cast<double>(std::min(tiles, clusters) * sharers * splits) / device_.sm_count;
    const double weight = static_cast<double>(layout_.bytes());
    const double memory_us = weight / (kGpuBytesPerUs * std::min(1.0, 0.4 + 0.65 * busy));
    return kLaunchUs + kStartUs + std::max(sm_us, memory_us);
  }

  const w4::Layout& layout_;
  int64_t m_;
  const DeviceInfo& device_;
  Candidate best_{};
  double us_ = std::numeric_limits<double>::infinity();
};

}  // namespace

bool select(const Problem& p, const DeviceInfo& device, Config* config, double* estimate_us) {
  const w4::Layout& layout = p.weight.layout;
  if (device.capability != 90 || (p.dtype != DType::kF16 && p.dtype != DType::kBF16)) return false;
  if (p.m == 0 || layout.n == 0 || layout.k == 0) return false;
  if (p.m > kMostExtent || layout.n > kMostExtent || layout.k > kMostExtent) return false;

  // How K is shared decides a row's bits: where they must not depend on M, it is as for few rows.
  constexpr int64_t kFewRows = 32;
  int splits = 0;
  if (p.batch_invariant) {
    Chooser few(layout, kFewRows, device);
    if (!few.choose(0)) return false;
    splits = few.best().splits;
  }
  Chooser chooser(layout, p.m, device);
  if (!chooser.choose(splits)) return false;
  const auto& [shape, sharers, parts, even_shares] = chooser.best();
  const int cluster = sharers * parts;
  const int64_t tiles = chooser.tiles_of(chooser.best());
  const int64_t most = most_clusters(device, cluster), turns = ceil_div(tiles, most);
  *estimate_us = chooser.us();
  *config = {.kernel = Kernel::kSm90Wgmma,
             .block_m = shape.rows,
             .block_n = shape.consumers * kWarpgroupColumns,
             .warps = (shape.consumers + 1) * kWarpgroup / 32,
             .stages = 0,
             .cluster = cluster,
             .splits = parts,
             // As few as need the same number of turns: less power, the same time.
             .ctas = static_cast<int>(even_shares ? most : ceil_div(tiles, turns)) * cluster,
             .even_shares = even_shares,
             .copy_x = !x_fits_tma(p),
             .workspace_bytes = 0,
             .reason = "the weight dequantized in registers: fewest cycles over the SMs"};
  if (even_shares) {
    config->workspace_bytes = shares_plan(shape.rows, config->block_n, config->ctas).bytes();
  }
  if (config->copy_x) {
    const int64_t bytes = p.m * round_up<int64_t>(layout.k, 8) * 2;
    config->workspace_bytes += bytes;
    *estimate_us += kCopyLaunchUs + 2.0 * static_cast<double>(bytes) / kCopyBytesPerUs;
  }
  return true;
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
