#include "cuda/w4a16/sm80/select.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "common/math.h"
#include "cuda/w4a16/sm80/plan.h"
#include "cuda/w4a16/sm80/tile.h"

namespace xgemm::cuda::w4a16::sm80 {
namespace {

// What the choice needs to know of a TileConfig: its size, and microseconds that a CTA takes for a
// unit's k, where it has the SM to itself and, of each of them, where the SM holds all it can, and
// for the rest: until the ring is full, and to store.
struct Tile {
  int block_m, block_n, warps, warps_k, ctas_per_sm;
  int (*shared_bytes)(int unit_bytes, int stages);
  double unit_alone_us, unit_full_us, fixed_us;
};

template <typename T>
constexpr Tile describe(double unit_alone_us, double unit_full_us, double fixed_us) {
  return {T::kBlockM,       T::kBlockN,    T::kWarps,     T::kWarpsK, T::kCtasPerSm,
          &T::shared_bytes, unit_alone_us, unit_full_us, fixed_us};
}
// Fitted to benchmarks/sweep_w4a16.py on an H200; the choice needs their proportions only.
constexpr Tile kTiles[] = {
    describe<Tile8>(0.3446, 0.1329, 1.8368),      describe<Tile8Wide>(0.3972, 0.3208, 0.9783),
    describe<Tile16>(0.0703, 0.1433, 3.1686),     describe<Tile16Wide>(0.4614, 0.3293, 1.4704),
    describe<Tile32>(0.3301, 0.2992, 1.3048),     describe<Tile32Wide>(0.5168, 0.4268, 3.9552),
    describe<Tile64>(1.089, 0.7759, 4.1777),
};
constexpr double kLaunchMicroseconds = 6.0;
constexpr double kReduceMicroseconds = 2.5;  // the second launch of split-K
constexpr double kReduceBytesPerMicrosecond = 2.2e6;
constexpr double kReadBytesPerMicrosecond = 2.9e6;  // of the weight, by the whole GPU
constexpr int kMostSplits = 64;

// Shared memory of a multiprocessor.
int shared_memory(int capability) {
  if (capability == 80 || capability == 87) return 164 << 10;
  return capability >= 90 && capability < 120 ? 228 << 10 : 100 << 10;
}

// The most stages with which an SM holds the CTAs that it should, or else one CTA; none where not
// even that fits.
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
  return 0;
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
  const int64_t per_sm = ceil_div<int64_t>(tiles * splits, sm_count);  // the busiest one
  const int64_t rounds = per_sm / tile.ctas_per_sm, rest = per_sm % tile.ctas_per_sm;
  const auto units = static_cast<double>(per_split);
  const double full = tile.ctas_per_sm * units * tile.unit_full_us + tile.fixed_us;
  double cost = static_cast<double>(rounds) * full;
  if (rest > 0) {
    const double of_rest = rest > 1 ? static_cast<double>(rest) * tile.unit_full_us
                                    : tile.unit_alone_us;
    cost += units * of_rest + tile.fixed_us;
  }
  const auto weight = static_cast<double>(p.weight_rows * p.units) * p.unit_bytes;
  cost = std::max(cost, weight / kReadBytesPerMicrosecond);
  if (splits > 1) {
    const double partials = 4.0 * static_cast<double>(splits * p.m * p.partial_stride);
    cost += kReduceMicroseconds + partials / kReduceBytesPerMicrosecond;
  }
  if (cost < best->cost) *best = {&tile, static_cast<int>(splits), tiles * splits, cost};
}

int64_t tiles_of(const Tile& tile, const Params& p) {
  return ceil_div<int64_t>(p.m, tile.block_m) * ceil_div<int64_t>(p.n, tile.block_n);
}

// Whole K; K in as many parts as give each SM one CTA, or all that it holds, once or twice; and in a
// few parts, which even out what the SMs have to do where tiles are some times as many.
void consider(const Tile& tile, const Params& p, int sm_count, Choice* best) {
  const int64_t tiles = tiles_of(tile, p);
  consider(tile, tiles, 1, p, sm_count, best);
  for (int per_sm = 1; per_sm <= 2 * tile.ctas_per_sm; ++per_sm) {
    const int64_t parts = std::min<int64_t>(int64_t{sm_count} * per_sm / tiles, kMostSplits);
    if (parts > 1) consider(tile, tiles, parts, p, sm_count, best);
  }
  if (tiles * 4 < sm_count) return;
  for (const int parts : {2, 3, 4}) consider(tile, tiles, parts, p, sm_count, best);
}

// Any tile that this GPU's shared memory holds, but for those with four times the rows that there
// are.
Choice choose(const Params& p, const DeviceInfo& device, int sm_count) {
  Choice best;
  for (const Tile& tile : kTiles) {
    const bool too_large = tile.block_m > kTiles[0].block_m && tile.block_m >= 4 * p.m;
    if (!too_large && stages_of(tile, p.unit_bytes, device.capability) > 0) {
      consider(tile, p, sm_count, &best);
    }
  }
  return best;
}

// The sum of a row runs over k in an order that the tile (warps along k) and the splits give, so
// both are what they would be for one tile of 16 rows.
Choice choose_invariant(const Params& p, int sm_count) {
  constexpr const Tile& kOrder = kTiles[3];
  static_assert(kOrder.block_m == Tile16Wide::kBlockM && kOrder.block_n == Tile16Wide::kBlockN);
  Params few = p;
  few.m = 16;
  Choice order, best;
  consider(kOrder, few, sm_count, &order);
  for (const Tile& tile : kTiles) {
    if (tile.warps_k == kOrder.warps_k) {
      consider(tile, tiles_of(tile, p), order.splits, p, sm_count, &best);
    }
  }
  return best;
}

}  // namespace

Config select(const Problem& problem, const DeviceInfo& device, double* estimate_us) {
  const Params p = make_params(problem);
  const int sm_count = std::max(device.sm_count, 1);
  const Choice best =
      problem.batch_invariant ? choose_invariant(p, sm_count) : choose(p, device, sm_count);
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
