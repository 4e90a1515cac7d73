#include "cuda/w4a16/sm80/select.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "common/math.h"
#include "cuda/w4a16/sm80/plan.h"
#include "cuda/w4a16/sm80/tile.h"

namespace xgemm::cuda::w4a16::sm80 {
namespace {

// What the choice needs to know of a TileConfig.
struct Tile {
  int block_m, block_n, warps, warps_k, ctas_per_sm;
  int (*shared_bytes)(int unit_bytes, int stages);
};

template <typename T>
constexpr Tile describe() {
  return {T::kBlockM, T::kBlockN, T::kWarps, T::kWarpsK, T::kCtasPerSm, &T::shared_bytes};
}
constexpr Tile kTiles[] = {describe<Tile8>(), describe<Tile16>(), describe<Tile32>(),
                           describe<Tile64>()};

// Estimates, for a GPU of an H200's speed; the choice needs their proportions only.
constexpr double kSmBytesPerMicrosecond = 3.0e4;  // of weights and X together, into one SM
constexpr double kSmFlopsPerMicrosecond = 3.0e6;  // mma.sync under dequantization
constexpr double kRoundMicroseconds = 2.0;        // filling the ring, the epilogue
constexpr double kLaunchMicroseconds = 3.0;
constexpr double kReduceMicroseconds = 2.5;  // the second launch of split-K
constexpr double kReduceBytesPerMicrosecond = 2.5e6;
constexpr int kMostSplits = 64;

// Shared memory of a multiprocessor.
int shared_memory(int capability) {
  if (capability == 80 || capability == 87) return 164 << 10;
  return capability >= 90 && capability < 120 ? 228 << 10 : 100 << 10;
}

// The most stages with which an SM holds the CTAs that it should, or else one CTA.
int stages_of(const Tile& tile, int unit_bytes, int capability) {
  constexpr int kReserved = 1 << 10;  // of every CTA
  for (int ctas = tile.ctas_per_sm; ctas >= 1; --ctas) {
    const int most = shared_memory(capability) / ctas - kReserved;
    for (int stages = kMostStages; stages >= kLeastStages; --stages) {
      // A ring of two hides less than a second CTA does, but one CTA of three more than two of two.
      if (stages == kLeastStages && ctas > 1) break;
      if (tile.shared_bytes(unit_bytes, stages) <= most) return stages;
    }
  }
  return kLeastStages;
}

struct Choice {
  const Tile* tile = nullptr;
  int splits = 1;
  int64_t ctas = 0;
  double cost = std::numeric_limits<double>::infinity();
};

void consider(const Tile& tile, int64_t tiles, int64_t parts, const Params& p, int sm_count,
              Choice* best) {
  const int64_t per_split = round_up<int64_t>(ceil_div<int64_t>(p.units, parts), tile.warps_k);
  const int64_t splits = p.units == 0 ? 1 : ceil_div<int64_t>(p.units, per_split);
  const int64_t per_sm = ceil_div<int64_t>(tiles * splits, sm_count);
  const double units = static_cast<double>(per_sm * per_split);
  const double bytes = units * (tile.block_n / 64 * p.unit_bytes + tile.block_m * kXRowBytes);
  const double flops = units * 2.0 * tile.block_m * tile.block_n * kUnitK;
  double cost =
      std::max(bytes / kSmBytesPerMicrosecond, flops / kSmFlopsPerMicrosecond) +
      static_cast<double>(ceil_div<int64_t>(per_sm, tile.ctas_per_sm)) * kRoundMicroseconds;
  if (splits > 1) {
    const double partials = 4.0 * static_cast<double>(splits * p.m * p.partial_stride);
    cost += kReduceMicroseconds + 2.0 * partials / kReduceBytesPerMicrosecond;
  }
  if (cost < best->cost) *best = {&tile, static_cast<int>(splits), tiles * splits, cost};
}

int64_t tiles_of(const Tile& tile, const Params& p) {
  return ceil_div<int64_t>(p.m, tile.block_m) * ceil_div<int64_t>(p.n, tile.block_n);
}

// Whole K; K in as many parts as give each SM one CTA, or all that it holds; and in a few parts,
// which even out what the SMs have to do where tiles are some times as many.
void consider(const Tile& tile, const Params& p, int sm_count, Choice* best) {
  const int64_t tiles = tiles_of(tile, p);
  consider(tile, tiles, 1, p, sm_count, best);
  for (int per_sm = 1; per_sm <= tile.ctas_per_sm; ++per_sm) {
    const int64_t parts = std::min<int64_t>(int64_t{sm_count} * per_sm / tiles, kMostSplits);
    if (parts > 1) consider(tile, tiles, parts, p, sm_count, best);
  }
  if (tiles < sm_count) return;
  for (const int parts : {2, 3, 4}) consider(tile, tiles, parts, p, sm_count, best);
}

// The smallest tile that holds all rows, or the largest, and the one below it.
Choice choose(const Params& p, int sm_count) {
  size_t fits = 0;
  while (fits + 1 < std::size(kTiles) && kTiles[fits].block_m < p.m) ++fits;
  Choice best;
  for (size_t i = fits > 0 ? fits - 1 : 0; i <= fits; ++i) {
    consider(kTiles[i], p, sm_count, &best);
  }
  return best;
}

// The sum of a row runs over k in an order that the tile (warps along k) and the splits give, so
// both are what they would be for one tile of 16 rows.
Choice choose_invariant(const Params& p, int sm_count) {
  Params few = p;
  few.m = 16;
  Choice order, best;
  consider(kTiles[1], few, sm_count, &order);
  for (const Tile& tile : kTiles) {
    if (tile.warps_k == 1) consider(tile, tiles_of(tile, p), order.splits, p, sm_count, &best);
  }
  return best;
}

}  // namespace

Config select(const Problem& problem, const DeviceInfo& device, double* estimate_us) {
  const Params p = make_params(problem);
  const int sm_count = std::max(device.sm_count, 1);
  const Choice best = problem.batch_invariant ? choose_invariant(p, sm_count) : choose(p, sm_count);
  const int64_t partials =
      best.splits == 1 ? 0 : 4 * best.splits * rows_per_launch(p, best.splits) * p.partial_stride;
  const bool copy_x = !x_fits(problem);
  *estimate_us = kLaunchMicroseconds + best.cost + (copy_x ? kLaunchMicroseconds : 0.0);
  return {.kernel = Kernel::kSm80,
          .block_m = best.tile->block_m,
          .block_n = best.tile->block_n,
          .warps = best.tile->warps,
          .stages = stages_of(*best.tile, p.unit_bytes, device.capability),
          .splits = best.splits,
          .ctas = static_cast<int>(std::min<int64_t>(best.ctas, std::numeric_limits<int>::max())),
          .copy_x = copy_x,
          .workspace_bytes = round_up<int64_t>(partials, 256) +
                             (copy_x ? p.m * copied_row_stride(problem) * 2 : 0),
          .reason = copy_x ? "mma.sync on every GPU from Ampere on; x is copied, as it is permuted "
                             "or not 16-byte aligned"
                           : "mma.sync on every GPU from Ampere on"};
}

}  // namespace xgemm::cuda::w4a16::sm80
