#include "cuda/w4a16/sm80/select.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/w4a16/sm80/plan.h"
#include "cuda/w4a16/sm80/tile.h"

namespace xgemm::cuda::w4a16::sm80 {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// A tile with its stages, and the microseconds that a CTA takes: for a unit's k where it has the SM
// to itself and, of each, where the SM holds all it can, and for the rest: until the pipeline is
// full, and to store.
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
constexpr double kLaunchUs = 5.6;
constexpr double kReduceUs = 3.4;  // the second launch of split-K
constexpr double kReduceBytesPerUs = 2.3e6;
constexpr double kReadBytesPerUs = 4.1e6;  // of the weight, by the whole GPU
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

struct Candidate {
  const Way* way;
  Fit fit;
  int64_t tiles, splits;  // of D; of K, that it is to have
};

// Splits of K, none of which is empty.
struct Splits {
  int64_t units_each, count;
};

Splits splits_of(const Candidate& c, const Params& p) {
  const int64_t each = round_up<int64_t>(ceil_div<int64_t>(p.units, c.splits), c.way->warps_k);
  return {each, p.units == 0 ? 1 : ceil_div<int64_t>(p.units, each)};
}

int64_t tiles_of(const Way& way, const Params& p) {
  return ceil_div<int64_t>(p.m, way.block_m) * ceil_div<int64_t>(p.n, way.block_n);
}

class Model {
 public:
  using Candidate = sm80::Candidate;

  Model(const Problem& problem, const Params& params, const DeviceInfo& device)
      : problem_(problem),
        p_(params),
        gpu_(choose::constants_of(device)),
        capability_(device.capability),
        sm_count_(std::max(device.sm_count, 1)),
        copy_x_(!x_fits(problem)) {}

  // Any way that this GPU's shared memory and the format allow, but for tiles with four times the
  // rows that there are, or a sixteenth of them.
  template <typename Search>
  void candidates(Search& search) const {
    // Scales can be multiplied into the weights.
    const bool scales_fit = !p_.zeros && p_.bf16_scales == (problem_.dtype == DType::kBF16);
    for (const Way& way : kWays) {
      if (way.scaled_weights && !scales_fit) continue;
      const bool too_large = way.block_m > 16 && way.block_m >= 4 * p_.m;
      const bool too_small = way.block_m < Tile64::kBlockM && way.block_m * 16 <= p_.m;
      if (!too_large && !too_small) of_way(way, search);
    }
  }

  // In as many splits of K as leave each SM no more CTAs than it can hold three times.
  template <typename Search>
  void of_way(const Way& way, Search& search) const {
    const Fit here = fit(way, p_.unit_bytes, capability_);
    if (here.ctas == 0) return;
    const int64_t tiles = tiles_of(way, p_);
    for (const int splits : kSplits) {
      if (splits > 1 && tiles * splits > int64_t{3} * here.ctas * sm_count_) break;
      if (splits > 1 && splits * way.warps_k > p_.units) break;
      search.consider({&way, here, tiles, splits});
    }
  }

  Estimate estimate(const Candidate& c, double) const {
    const auto [units_each, splits] = splits_of(c, p_);
    const int64_t per_sm = ceil_div<int64_t>(c.tiles * splits, sm_count_);  // the busiest one
    const int64_t waves = per_sm / c.fit.ctas, rest = per_sm % c.fit.ctas;
    const auto units = static_cast<double>(units_each);
    // Of a unit, at the clock that the times were measured at.
    const double unit_full_us = c.way->unit_full_us / gpu_.clock_speed;
    const double unit_alone_us = c.way->unit_alone_us / gpu_.clock_speed;
    double busy =
        static_cast<double>(waves) * (c.fit.ctas * units * unit_full_us + c.way->fixed_us);
    if (rest > 0) {
      const double unit_us = rest > 1 ? static_cast<double>(rest) * unit_full_us : unit_alone_us;
      busy += units * unit_us + c.way->fixed_us;
    }
    const auto weight = static_cast<double>(p_.weight_rows * p_.units) * p_.unit_bytes;
    const double dram = weight / (kReadBytesPerUs * gpu_.dram_speed);
    double reduce = 0;
    if (splits > 1) {
      const double partials = 4.0 * static_cast<double>(splits * p_.m * p_.partial_stride);
      reduce = kReduceUs + partials / (kReduceBytesPerUs * gpu_.dram_speed);
    }
    const double copies = copy_x_ ? kLaunchUs : 0;
    return {
        .us = kLaunchUs + std::max(busy, dram) + reduce + copies,
        .parts = {
            .launch = kLaunchUs, .dram = dram, .mma = busy, .exchange = reduce, .copies = copies}};
  }

  Choice choice(const Candidate& c) const {
    const int64_t splits = splits_of(c, p_).count;
    const int64_t rows = rows_per_launch(p_, static_cast<int>(splits));
    const int64_t partials =
        splits == 1 ? 0 : round_up<int64_t>(4 * splits * rows * p_.partial_stride, 256);
    const int64_t copy = copy_x_ ? p_.m * copied_row_stride(problem_) * 2 : 0;
    return {.config = Config{.block_m = c.way->block_m,
                             .block_n = c.way->block_n,
                             .warps = c.way->warps,
                             .stages = c.fit.stages,
                             .splits = static_cast<int>(splits),
                             .ctas = c.tiles * splits,
                             .rows_per_launch = rows,
                             .partials_bytes = partials,
                             .copy_x = copy_x_},
            .workspace_bytes = partials + copy,
            .reason = copy_x_ ? "mma.sync on every GPU from Ampere on; x is copied, as it is "
                                "permuted or not 16-byte aligned"
                              : "mma.sync on every GPU from Ampere on"};
  }

  Fit fit_of(const Way& way) const { return fit(way, p_.unit_bytes, capability_); }
  const Params& params() const { return p_; }

 private:
  const Problem& problem_;
  const Params& p_;
  const choose::DeviceConstants& gpu_;
  int capability_, sm_count_;
  bool copy_x_;
};

// The splits of K of one way.
struct OrderModel : Model {
  const Way& way;

  template <typename Search>
  void candidates(Search& search) const {
    of_way(way, search);
  }
};

// All ways with a given order of K: its splits, and warps along it.
struct InvariantModel : Model {
  int64_t splits;
  int warps_k;

  template <typename Search>
  void candidates(Search& search) const {
    for (const Way& way : kWays) {
      const Fit here = fit_of(way);
      if (way.warps_k != warps_k || way.scaled_weights || here.ctas == 0) continue;
      search.consider({&way, here, tiles_of(way, params()), splits});
    }
  }
};

// The sum of a row runs over k in an order that the tile (warps along k) and the splits give, so
// both are what they would be for one tile of 16 rows.
InvariantModel invariant(const Problem& problem, const Params& p, const DeviceInfo& device) {
  constexpr const Way& kOrder = kWays[5];
  static_assert(kOrder.block_m == Tile16Wide::kBlockM && kOrder.block_n == Tile16Wide::kBlockN);
  Params of_16_rows = p;
  of_16_rows.m = 16;
  const OrderModel order{Model(problem, of_16_rows, device), kOrder};
  const auto best = choose::best_of<Choice>(order);
  const int64_t splits = best ? splits_of(best->candidate, of_16_rows).count : 1;
  return {Model(problem, p, device), splits, kOrder.warps_k};
}

}  // namespace

std::optional<Scored<Choice>> select(const Problem& problem, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  const Params p = make_params(problem);
  if (problem.batch_invariant) {
    return choose::pick<Choice>(invariant(problem, p, device), listing);
  }
  return choose::pick<Choice>(Model(problem, p, device), listing);
}

}  // namespace xgemm::cuda::w4a16::sm80
