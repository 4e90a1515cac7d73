#include "cuda/w4a16/sm80/select.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "common/candidate_log.h"
#include "common/math.h"
#include "cuda/w4a16/sm80/plan.h"
#include "cuda/w4a16/sm80/tile.h"

namespace xgemm::cuda::w4a16::sm80 {
namespace {

// A tile with a ring, and the microseconds that a CTA takes: for a unit's k where it has the SM to
// itself and, of each, where the SM holds all it can, and for the rest: until the ring is full, and
// to store.
struct Way {
  int block_m, block_n, warps, warps_k, most_ctas;
  bool scaled_weights;
  int (*shared_bytes)(int unit_bytes, int stages);
  int stages;
  double unit_alone_us, unit_full_us, fixed_us;
};

template <typename T>
constexpr Way way(int stages, double unit_alone_us, double unit_full_us, double fixed_us) {
  return {T::kBlockM,    T::kBlockN,        T::kWarps,        T::kWarpsK,
          T::kCtasPerSm, T::kScaledWeights, &T::shared_bytes, stages,
          unit_alone_us, unit_full_us,      fixed_us};
}
// Fitted to 154 products on an H200: 11 layers by 1 to 512 rows, in 1 to 24 parts of K, fp16,
// groups of 128, the weight read from memory. The choice takes 0.3 % longer than the best of these
// ways, at the worst 7 % (by the constants before: 1.7 %, 18 %).
constexpr Way kWays[] = {
    way<Tile8>(2, 0.145, 0.112, 1.43),     way<Tile8>(3, 0.139, 0.139, 1.53),
    way<Tile8Wide>(2, 0.391, 0.262, 1.46), way<Tile8Wide>(3, 0.346, 0.251, 1.34),
    way<Tile16>(3, 0.159, 0.159, 1.36),    way<Tile16Wide>(3, 0.398, 0.307, 1.07),
    way<Tile32>(2, 0.276, 0.217, 1.35),    way<Tile32>(3, 0.278, 0.278, 1.37),
    way<Tile32>(4, 0.273, 0.273, 1.36),    way<Tile32Wide>(2, 0.437, 0.416, 2.09),
    way<Tile64>(2, 0.972, 0.748, 1.92),    way<Tile64Wide>(2, 1.467, 1.372, 3.92),
};
constexpr double kLaunchMicroseconds = 5.6;
constexpr double kReduceMicroseconds = 3.4;  // the second launch of split-K
constexpr double kReduceBytesPerMicrosecond = 2.3e6;
constexpr double kReadBytesPerMicrosecond = 4.1e6;  // of the weight, by the whole GPU
constexpr int kSplits[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64};

// Shared memory of a multiprocessor.
int shared_memory(int capability) {
  if (capability == 80 || capability == 87) return 164 << 10;
  return capability >= 90 && capability < 120 ? 228 << 10 : 100 << 10;
}

// What a way is on this GPU, for this format.
struct Fit {
  int stages = 0;  // as many as it asks for, if shared memory holds them; 0 where not even two fit
  int ctas = 0;    // that an SM holds
};

Fit fit(const Way& way, int unit_bytes, int capability) {
  constexpr int kReserved = 1 << 10;  // of every CTA
  for (int stages = way.stages; stages >= kMinStages; --stages) {
    const int ctas = shared_memory(capability) / (way.shared_bytes(unit_bytes, stages) + kReserved);
    if (ctas > 0) return {stages, std::min(ctas, way.most_ctas)};
  }
  return {};
}

struct Choice {
  const Way* way = nullptr;
  int stages = 0, splits = 1;
  int64_t ctas = 0;
  double cost = std::numeric_limits<double>::infinity();
};

// Without a copy of X.
Config config_of(const Choice& choice, const Params& p) {
  const int64_t partials =
      choice.splits == 1 ? 0
                         : 4 * choice.splits * rows_per_launch(p, choice.splits) * p.partial_stride;
  return {.kernel = Kernel::kSm80,
          .block_m = choice.way->block_m,
          .block_n = choice.way->block_n,
          .warps = choice.way->warps,
          .stages = choice.stages,
          .splits = choice.splits,
          .ctas = static_cast<int>(std::min<int64_t>(choice.ctas, std::numeric_limits<int>::max())),
          .workspace_bytes = round_up<int64_t>(partials, 256)};
}

void consider(const Way& way, Fit fit, int64_t tiles, int64_t parts, const Params& p, int sm_count,
              Choice* best) {
  const int64_t per_split = round_up<int64_t>(ceil_div<int64_t>(p.units, parts), way.warps_k);
  const int64_t splits = p.units == 0 ? 1 : ceil_div<int64_t>(p.units, per_split);
  const int64_t per_sm = ceil_div<int64_t>(tiles * splits, sm_count);  // the busiest one
  const int64_t rounds = per_sm / fit.ctas, rest = per_sm % fit.ctas;
  const auto units = static_cast<double>(per_split);
  double cost = static_cast<double>(rounds) * (fit.ctas * units * way.unit_full_us + way.fixed_us);
  if (rest > 0) {
    const double unit_us =
        rest > 1 ? static_cast<double>(rest) * way.unit_full_us : way.unit_alone_us;
    cost += units * unit_us + way.fixed_us;
  }
  const auto weight = static_cast<double>(p.weight_rows * p.units) * p.unit_bytes;
  cost = std::max(cost, weight / kReadBytesPerMicrosecond);
  if (splits > 1) {
    const double partials = 4.0 * static_cast<double>(splits * p.m * p.partial_stride);
    cost += kReduceMicroseconds + partials / kReduceBytesPerMicrosecond;
  }
  const Choice choice{&way, fit.stages, static_cast<int>(splits), tiles * splits, cost};
  if (auto* log = CandidateLog<Config>::active()) {
    log->add(config_of(choice, p), kLaunchMicroseconds + cost);
  }
  if (cost < best->cost) *best = choice;
}

int64_t tiles_of(const Way& way, const Params& p) {
  return ceil_div<int64_t>(p.m, way.block_m) * ceil_div<int64_t>(p.n, way.block_n);
}

// In as many parts of K as leave each SM no more CTAs than it can hold three times.
void consider(const Way& way, Fit fit, const Params& p, int sm_count, Choice* best) {
  const int64_t tiles = tiles_of(way, p);
  for (const int parts : kSplits) {
    if (parts > 1 && tiles * parts > int64_t{3} * fit.ctas * sm_count) break;
    if (parts > 1 && parts * way.warps_k > p.units) break;
    consider(way, fit, tiles, parts, p, sm_count, best);
  }
}

// Any way that this GPU's shared memory and the format allow, but for tiles with four times the
// rows that there are, or a sixteenth of them. scales_fit: they can be multiplied into the weights.
Choice choose(const Params& p, bool scales_fit, int capability, int sm_count) {
  Choice best;
  for (const Way& way : kWays) {
    if (way.scaled_weights && !scales_fit) continue;
    const bool too_large = way.block_m > 16 && way.block_m >= 4 * p.m;
    const bool too_small = way.block_m < Tile64::kBlockM && way.block_m * 16 <= p.m;
    const Fit here = fit(way, p.unit_bytes, capability);
    if (!too_large && !too_small && here.ctas > 0) consider(way, here, p, sm_count, &best);
  }
  return best;
}

// The sum of a row runs over k in an order that the tile (warps along k) and the splits give, so
// both are what they would be for one tile of 16 rows.
Choice choose_invariant(const Params& p, int capability, int sm_count) {
  constexpr const Way& kOrder = kWays[5];
  static_assert(kOrder.block_m == Tile16Wide::kBlockM && kOrder.block_n == Tile16Wide::kBlockN);
  Params of_16_rows = p;
  of_16_rows.m = 16;
  Choice order, best;
  consider(kOrder, fit(kOrder, p.unit_bytes, capability), of_16_rows, sm_count, &order);
  for (const Way& way : kWays) {
    const Fit here = fit(way, p.unit_bytes, capability);
    if (way.warps_k != kOrder.warps_k || way.scaled_weights || here.ctas == 0) continue;
    consider(way, here, tiles_of(way, p), order.splits, p, sm_count, &best);
  }
  return best;
}

}  // namespace

Config select(const Problem& problem, const DeviceInfo& device, double* estimate_us) {
  const Params p = make_params(problem);
  const int sm_count = std::max(device.sm_count, 1);
  const bool scales_fit = !p.zeros && p.bf16_scales == (problem.dtype == DType::kBF16);
  const size_t first = logged<Config>();
  const Choice best = problem.batch_invariant ? choose_invariant(p, device.capability, sm_count)
                                              : choose(p, scales_fit, device.capability, sm_count);
  const bool copy_x = !x_fits(problem);
  const auto copy = [&](Config& config, double& us) {
    config.copy_x = copy_x;
    config.reason = "mma.sync on every GPU from Ampere on";
    if (!copy_x) return;
    config.workspace_bytes += p.m * copied_row_stride(problem) * 2;
    config.reason =
        "mma.sync on every GPU from Ampere on; x is copied, as it is permuted or not 16-byte "
        "aligned";
    us += kLaunchMicroseconds;
  };
  adjust_logged<Config>(first, copy);
  *estimate_us = kLaunchMicroseconds + best.cost;
  Config config = config_of(best, p);
  copy(config, *estimate_us);
  return config;
}

}  // namespace xgemm::cuda::w4a16::sm80
