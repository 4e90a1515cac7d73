#include "cuda/gemm/fp32/sm90/select.h"

#include <algorithm>
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

// A tile and the rates that its CTAs reach.
struct Tile {
  const TileShape* shape;
  // The share of the FP64 tensor cores' rate that four, eight ... warps of an SM reach in their
  // mainloops, where TMA loads and where threads copy.
  double of_tma[4], of_copies[3];
  double bytes_per_us;  // of all that is read and stored
};
constexpr Tile kTiles[] = {{&kTile64x64, {0.744, 0.873, 0.892, 0.975}, {0.57, 0.66, 0.68}, 3.9e6},
                           {&kTile32x128, {0.631, 0.740, 0.756}, {0.538, 0.593, 0.593}, 3.9e6},
                           {&kTileOfWarp, {0.744, 0.873, 0.892}, {0.635, 0.70, 0.70}, 3.0e6},
                           {&kTileSliced, {0.6, 0.78, 0.8, 0.87}, {0.39, 0.47, 0.47}, 2.7e6},
                           {&kTileOfTf32, {0.66, 1.16, 1.48}, {0.333, 0.495, 0.523}, 1.9e6}};
constexpr int64_t kMaxRowsOfFlat = 96;
constexpr int64_t kMaxRowsOfWarp = 32, kMaxColumnsOfWarp = 128;  // its sides, or the other way
// Few rows by a large matrix, which the flat tile reads in longer runs.
constexpr int64_t kStreamRows = 28, kMinStream = 1024;

// A model of waves of as many CTAs as the SMs hold, and of a last one of fewer. Constants: a fit
// of an H200's times of 1,081 shapes, 9,865 tiles, splits and copies of them, those of the tile
// that warps share of 3,700 shapes: over these the choice takes 0.5 % longer than the best. An SM's
// time for the start and the end of a wave, and of four warps in it.
constexpr double kWaveUs = 0.28, kFourWarpsUs = 0.18;
constexpr double kFmasPerCycle = 128;  // of an SM
constexpr double kStartUs = 5.4;       // the launch, and until the first tile has come
constexpr double kStoreBytesPerUs = 6.5e6;
constexpr double kReduceUs = 3.4, kReduceBytesPerUs = 3.3e6;  // the sum of parts, a second launch
constexpr double kSplitUs = 0.046;                         // more, for each part of a tile over 8
constexpr double kCopyUs = 2.95, kCopyBytesPerUs = 4.4e6;  // one launch for both operands

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
        store_bytes_(4.0 * static_cast<double>(p.m) * static_cast<double>(p.n) *
                     static_cast<double>(p.batches)),
        stream_us_((store_bytes_ + 4.0 * static_cast<double>(p.k) * static_cast<double>(p.m + p.n) *
                                       static_cast<double>(p.batches)) /
                   (tile.bytes_per_us * gpu_.dram_speed)) {}

  template <typename Search>
  void candidates(Search& search) const {
    consider({this, tiles_, 1}, search);
    // The tiles of the last wave, of the last two, and all.
    const int64_t waves = tiles_ / slots_;
    for (int64_t last = 0; last <= std::min<int64_t>(waves, 2); ++last) {
      const int64_t whole = (waves - last) * slots_;
      if (whole == tiles_ || (last == 2 && whole > 0)) continue;
      const int64_t split_tiles = tiles_ - whole;
      for (int64_t splits = 2; splits <= kMaxSplits && split_tiles * splits <= 4 * slots_;
           ++splits) {
        // None of them empty.
        if (ceil_div(k_tiles_, ceil_div(k_tiles_, splits)) != splits) continue;
        consider({this, whole, splits}, search);
      }
      if (whole > 0 || shape_.warps() == 1) continue;
      // Few tiles: as many parts as give each SM from one to all that it holds.
      for (int per_sm = 1; per_sm <= per_sm_; ++per_sm) {
        const int64_t k_tiles_each = ceil_div(
            k_tiles_,
            std::clamp<int64_t>(int64_t{sm_count_} * per_sm / tiles_, 1, kMaxSplitsOfFewTiles));
        const int64_t splits = ceil_div(k_tiles_, k_tiles_each);
        if (splits > kMaxSplits) consider({this, 0, splits}, search);
      }
    }
  }

  Estimate estimate(const Candidate& c) const {
    const int64_t parts = parts_of(c);
    double busy_us = 0;
    if (c.whole > 0) busy_us += waves_us(c.whole, p_.k);
    if (parts > 0) busy_us += waves_us(parts, ceil_div(k_tiles_, c.splits) * shape_.stage_depth());
    const double store_us = store_bytes_ / (kStoreBytesPerUs * gpu_.dram_speed);
    double us = kStartUs + operands_.us + std::max(busy_us, stream_us_) + store_us, reduce_us = 0;
    if (parts > 0) {
      // Threads share those of few tiles.
      const double split_us = c.whole > 0 ? kSplitUs : kSplitUs / kPartsGroups;
      reduce_us = kReduceUs +
                  static_cast<double>(parts_bytes(c)) / (kReduceBytesPerUs * gpu_.dram_speed) +
                  split_us * static_cast<double>(std::max<int64_t>(c.splits - 8, 0));
      us += reduce_us;
    }
    return {.us = us,
            .parts = {.launch = kStartUs,
                      .dram = stream_us_,
                      .mma = busy_us,
                      .exchange = reduce_us,
                      .epilogue = store_us,
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

  // Of `count` CTAs of so many k.
  double waves_us(int64_t count, int64_t k) const {
    const int warps = shape_.warps();
    const int64_t depth = round_up<int64_t>(std::min(k, p_.k), kPairOfSteps * shape_.slices);
    // Four warps' products.
    const double us = 4.0 / warps * shape_.block_m * shape_.block_n * static_cast<double>(depth) /
                      (kFmasPerCycle * gpu_.fma_cycles_per_us);
    const double* of = operands_.by_threads ? tile_.of_copies : tile_.of_tma;
    const auto wave_us = [&](int ctas) {
      if (ctas == 0) return 0.0;
      const int fours = ceil_div(ctas * warps, 4);
      return fours * us / of[fours - 1] + kFourWarpsUs * ctas * warps / 4 + kWaveUs;
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
  double store_bytes_, stream_us_;
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
  // A block of the copy has so many rows, whether they exist or not.
  const auto copied_bytes = [&](const OperandParams& operand, int64_t rows,
                                int64_t BatchDim::* batch) {
    const int64_t of_block = operand.access == Access::kAlongK ? 32 : 128;
    const int64_t batches = p.batch_dims > 0 && p.batch[0].*batch == 0 ? 1 : p.batches;
    return 4.0 * static_cast<double>(round_up(rows, of_block)) * static_cast<double>(p.k) *
           static_cast<double>(batches);
  };
  double bytes = 0;
  if (!a_fits) bytes += copied_bytes(p.a, p.m, &BatchDim::a);
  if (!b_fits) bytes += copied_bytes(p.b, p.n, &BatchDim::b);
  operands->us =
      kCopyUs + 2.0 * bytes / (kCopyBytesPerUs * choose::constants_of(device).dram_speed);
  return place_copies(problem, &operands->copies);
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
    if (shape.warps() == 1 && (shorter > kMaxRowsOfWarp || longer > kMaxColumnsOfWarp)) {
      return false;
    }
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
