#include "cuda/gemm/fp32/sm90/select.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/sm90/tiles.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// How fast four warps multiply where many share an SM, over the FP64 tensor cores' rate, and the
// time that each wave's warps wait for their own products, over theirs at that rate.
struct Mainloop {
  double rate, latency;
};
struct Tile {
  const TileShape* shape;
  Mainloop of_tma, of_copies;  // where TMA loads, and where threads copy
};
constexpr Tile kTiles[] = {{&kTile64x64, {1.259, 0.749}, {0.863, 0.713}},
                           {&kTile32x128, {1.193, 0.717}, {0.813, 1.135}},
                           {&kTileOfWarp, {0.84, 0.45}, {0.48, 0.58}},
                           {&kTileSliced, {1.184, 0.834}, {0.662, 1.187}},
                           {&kTileOfTf32, {2.239, 0.814}, {0.804, 1.415}}};
constexpr int64_t kMaxRowsOfFlat = 96;
constexpr int64_t kMaxRowsOfWarp = 32, kMaxColumnsOfWarp = 128;  // its sides, or the other way
// Few rows by a large matrix, which the flat tile reads in longer runs.
constexpr int64_t kStreamRows = 28, kMinStream = 1024;

// A model of waves of as many CTAs as the SMs hold, and of a last one of fewer. Constants: a fit
// of an H200's times of half of 3,840 random products (docs/measurements/fp32.md, "The choice"). An
// SM's time for the start and the end of a wave, and of four warps in it.
constexpr double kWaveUs = 0.079, kFourWarpsUs = 0.448;
constexpr double kFmasPerCycle = 128;  // of an SM
constexpr double kStartUs = 5.434;     // the launch, and until the first tile has come
constexpr double kMemoryBytesPerUs = 4.822e6;
// All CTAs ask for the same lines at the same time: a line of L2 serves one request after the
// other. An operand across k of few rows has several k in a line, and a request for each.
constexpr double kLineRequestUs = 0.188e-3;
// The sum of parts, a second launch: it waits for L2, or for its bytes.
constexpr double kReduceUs = 1.765, kReduceBytesPerUs = 1.702e6;
constexpr double kCopyUs = 2.768, kCopyBytesPerUs = 3.918e6;  // one launch for both operands

constexpr int64_t kMaxWorkspace = int64_t{1} << 28;  // of parts
constexpr int64_t kMaxSplits = 12, kMaxSplitsOfFewTiles = 264;

// How operands get to the kernel.
struct Operands {
  align::Copies copies{};
  double us = 0;            // of the copies
  bool by_threads = false;  // else by TMA
};

class Side;

struct Candidate {
  const Side* side;
  int64_t whole, splits;  // tiles that are not split; parts of K of the others
};

// One tile, and one way for its operands to get to the kernel.
class Side {
 public:
  Side(const Params& p, const Tile& tile, const DeviceInfo& device, const Operands& operands)
      : p_(p),
        gpu_(choose::constants_of(device)),
        tile_(tile),
        shape_(*tile.shape),
        operands_(operands),
        sm_count_(std::max(device.sm_count, 1)),
        per_sm_(operands.by_threads ? shape_.ctas_of_copies : shape_.ctas_of_tma),
        slots_(int64_t{sm_count_} * per_sm_),
        tiles_(ceil_div<int64_t>(p.m, shape_.block_m) * ceil_div<int64_t>(p.n, shape_.block_n) *
               p.batches),
        k_tiles_(ceil_div<int64_t>(p.k, shape_.stage_depth())),
        memory_us_(4.0 *
                   (static_cast<double>(p.m) * static_cast<double>(p.n) +
                    static_cast<double>(p.k) * static_cast<double>(p.m + p.n)) *
                   static_cast<double>(p.batches) / (kMemoryBytesPerUs * gpu_.dram_speed)),
        requests_us_(kLineRequestUs / gpu_.clock_speed *
                     std::max(requests(p.a, p.m, true, ceil_div<int64_t>(p.n, shape_.block_n)),
                              requests(p.b, p.n, false, ceil_div<int64_t>(p.m, shape_.block_m)))) {}

  template <typename Search>
  void candidates(Search& search) const {
    consider({this, tiles_, 1}, search);
    // The tiles of the last wave, which are all where they are few.
    const int64_t whole = tiles_ / slots_ * slots_, split_tiles = tiles_ - whole;
    if (split_tiles == 0) return;
    for (int64_t splits = 2; splits <= kMaxSplits && split_tiles * splits <= 4 * slots_; ++splits) {
      // None of them empty.
      if (ceil_div(k_tiles_, ceil_div(k_tiles_, splits)) != splits) continue;
      consider({this, whole, splits}, search);
    }
    if (whole > 0 || shape_.warps() == 1) return;
    // Few tiles: as many parts as give each SM from one to all that it holds.
    for (int per_sm = 1; per_sm <= per_sm_; ++per_sm) {
      const int64_t k_tiles_each = ceil_div(
          k_tiles_,
          std::clamp<int64_t>(int64_t{sm_count_} * per_sm / tiles_, 1, kMaxSplitsOfFewTiles));
      const int64_t splits = ceil_div(k_tiles_, k_tiles_each);
      if (splits > kMaxSplits) consider({this, 0, splits}, search);
    }
  }

  Estimate estimate(const Candidate& c) const {
    const int64_t parts = parts_of(c);
    double busy_us = 0;
    if (c.whole > 0) busy_us += waves_us(c.whole, p_.k);
    if (parts > 0) busy_us += waves_us(parts, ceil_div(k_tiles_, c.splits) * shape_.stage_depth());
    double us = kStartUs + operands_.us + std::hypot(busy_us, memory_us_, requests_us_);
    double reduce_us = 0;
    if (parts > 0) {
      const int64_t quads = (tiles_ - c.whole) * shape_.block_m * shape_.block_n / 4;
      const auto waits = static_cast<double>(waits_for_parts(c.splits, quads));
      const double bytes_us =
          static_cast<double>(parts_bytes(c)) / (kReduceBytesPerUs * gpu_.dram_speed);
      reduce_us = kReduceUs + std::hypot(kPartsWaitUs * waits, bytes_us);
      us += reduce_us;
    }
    return {.us = us,
            .parts = {.launch = kStartUs,
                      .dram = memory_us_,
                      .l2 = requests_us_,
                      .mma = busy_us,
                      .exchange = reduce_us,
                      .copies = operands_.us}};
  }

  Choice choice(const Candidate& c) const {
    return {.config = Config{.shape = tile_.shape,
                             .by_threads = operands_.by_threads,
                             .splits = static_cast<int>(c.splits),
                             .ctas = static_cast<int>(c.whole + parts_of(c))},
            .copies = operands_.copies,
            .workspace_bytes = parts_bytes(c) + operands_.copies.bytes};
  }

 private:
  int64_t parts_of(const Candidate& c) const {
    return c.splits > 1 ? (tiles_ - c.whole) * c.splits : 0;
  }
  int64_t parts_bytes(const Candidate& c) const {
    return parts_of(c) * shape_.block_m * shape_.block_n * 4;
  }

  template <typename Search>
  void consider(const Candidate& c, Search& search) const {
    if (parts_bytes(c) <= kMaxWorkspace) search.consider(c);
  }

  // Of an operand's busiest line, over all boxes of 32 k that `tiles` of the other's rows ask for.
  // A copy lies across k.
  double requests(const OperandParams& operand, int64_t rows, bool is_a, int64_t tiles) const {
    if (operands_.by_threads) return 0;
    const auto& copies = operands_.copies;
    const bool copied = (is_a != p_.transposed ? copies.a : copies.b) != align::Order::kNone;
    const int64_t stride = copied                              ? round_up<int64_t>(rows, 4)
                           : operand.access == Access::kAlongK ? kDepth
                                                               : std::abs(operand.k_stride);
    const double of_box = std::max(kDepth / static_cast<double>(std::max<int64_t>(stride, 1)), 1.0);
    return of_box * static_cast<double>(ceil_div<int64_t>(p_.k, kDepth) * tiles);
  }

  // Of `count` CTAs of so many k.
  double waves_us(int64_t count, int64_t k) const {
    const int warps = shape_.warps();
    const int64_t depth = round_up<int64_t>(std::min(k, p_.k), kPairOfSteps * shape_.slices);
    // Four warps' products.
    const double us = 4.0 / warps * shape_.block_m * shape_.block_n * static_cast<double>(depth) /
                      (kFmasPerCycle * gpu_.fma_cycles_per_us);
    const Mainloop& of = operands_.by_threads ? tile_.of_copies : tile_.of_tma;
    const auto wave_us = [&](int ctas) {
      if (ctas == 0) return 0.0;
      const int fours = ceil_div(ctas * warps, 4);
      return us * (fours / of.rate + of.latency) + kFourWarpsUs * ctas * warps / 4 + kWaveUs;
    };
    const auto last = static_cast<int>(ceil_div<int64_t>(count % slots_, sm_count_));
    return static_cast<double>(count / slots_) * wave_us(per_sm_) + wave_us(last);
  }

  const Params& p_;
  const choose::DeviceConstants& gpu_;
  const Tile& tile_;
  const TileShape& shape_;
  Operands operands_;
  int sm_count_, per_sm_;
  int64_t slots_, tiles_, k_tiles_;
  double memory_us_, requests_us_;
};

// TMA counts rows, k and batches in 32 bits, and one grid has all CTAs.
bool fits_int32(const Params& p) {
  constexpr int64_t kMax = int64_t{1} << 30;
  const double tiles = static_cast<double>(ceil_div<int64_t>(p.m, 32)) *
                       static_cast<double>(ceil_div<int64_t>(p.n, 32)) *
                       static_cast<double>(p.batches);
  return p.m < kMax && p.n < kMax && p.k < kMax && p.batches < kMax && tiles < kMax / 16;
}

// Copies of the operands that TMA cannot read. False where they cannot be made.
bool plan_copies(const GemmProblem& problem, const Params& p, const DeviceInfo& device,
                 Operands* operands) {
  const auto order = [](bool fits) { return fits ? align::Order::kNone : align::Order::kAcrossK; };
  const bool a_fits = fits_tma(p, p.a, p.m, &BatchDim::a);
  const bool b_fits = fits_tma(p, p.b, p.n, &BatchDim::b);
  if (a_fits && b_fits) return true;
  // make_params may have swapped the problem's operands.
  operands->copies = {order(p.transposed ? b_fits : a_fits), order(p.transposed ? a_fits : b_fits)};
  if (!place_copies(problem, &operands->copies)) return false;
  operands->us = kCopyUs + 2.0 * static_cast<double>(operands->copies.bytes) /
                               (kCopyBytesPerUs * choose::constants_of(device).dram_speed);
  return true;
}

// All tiles that suit the problem, each as its operands may get to the kernel.
class Model {
 public:
  using Candidate = sm90::Candidate;

  // `p` are the problem's parameters, `gemv` those with the smaller side first.
  Model(const GemmProblem& problem, const Params& p, const Params& gemv, const DeviceInfo& device) {
    for (const Tile& tile : kTiles) {
      const Params& q = is_flat(tile) ? gemv : p;
      if (!suits(problem, q, tile)) continue;
      Operands operands;
      if (plan_copies(problem, q, device, &operands))
        sides_.emplace_back(q, tile, device, operands);
      if (operands.copies.any() && q.a.unit_stride && q.b.unit_stride) {
        sides_.emplace_back(q, tile, device, Operands{.by_threads = true});
      }
    }
  }

  template <typename Search>
  void candidates(Search& search) const {
    for (const Side& side : sides_) side.candidates(search);
  }
  static Estimate estimate(const Candidate& c, double) { return c.side->estimate(c); }
  static Choice choice(const Candidate& c) { return c.side->choice(c); }

 private:
  static bool is_flat(const Tile& tile) { return tile.shape->block_m < tile.shape->block_n; }
  static bool suits(const GemmProblem& problem, const Params& q, const Tile& tile) {
    const TileShape& shape = *tile.shape;
    if (is_flat(tile) && q.m > kMaxRowsOfFlat) return false;
    if (tile.shape == &kTileOfTf32 && problem.precision != Precision::kTf32) {
      return false;
    }
    const int64_t shorter = std::min(q.m, q.n), longer = std::max(q.m, q.n);
    const bool of_warp = q.batches > 1 && shorter <= kMaxRowsOfWarp && longer <= kMaxColumnsOfWarp;
    if (shape.warps() == 1 && !of_warp) return false;
    return shape.slices == 1 || shorter > kStreamRows || std::min(longer, q.k) < kMinStream;
  }

  std::vector<Side> sides_;
};

}  // namespace

std::optional<Scored<Choice>> select(const GemmProblem& problem, const Params& p,
                                     const DeviceInfo& device, Listing<Choice>* listing) {
  if (device.capability != 90 || p.batch_dims > 1 || p.k == 0 || !fits_int32(p)) {
    return std::nullopt;
  }
  const Params gemv = make_gemv_params(problem);
  return choose::pick<Choice>(Model(problem, p, gemv, device), listing);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
