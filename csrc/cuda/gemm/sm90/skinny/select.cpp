#include "cuda/gemm/sm90/skinny/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/sm90/row_begins.h"
#include "cuda/gemm/sm90/skinny/tile.h"
#include "cuda/gemm/sm90/skinny/view.h"

namespace xgemm::cuda::gemm::sm90::skinny {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// What parts of a product take, on an H200 from a cold L2.
struct Costs {
  double launch_us;  // and what the first loads take
  double ramp_us;    // more, until memory is read at its full rate, for 15.6 MB and more
  double memory_bytes_per_us;
  // Of the time for memory, more for large problems: with up to 96 columns, and with 128.
  double large_loss, widest_large_loss;
  // Of streams that do not go past what L2 holds: with up to 96 columns or, where
  // takes_33_to_128_costs, is_large_33_to_128.
  double through_l2_loss;
  // Of the time for memory, more where W's rows begin within a line: along K, and across it.
  double uneven_k_loss, uneven_loss;
  double kept_in_l2;  // W that is read again takes the place of what L2 must write back
  double unevenness;  // of the excess of the longest queue of tiles, what costs
  double idleness;    // and of SMs that get no tile
  // Lines of 128 bytes: that L2 gives, and that one SM takes in; and those that a row which begins
  // within a line takes for every 128 bytes, of W and of X, or within a sector of 32 bytes.
  double l2_lines_per_us, sm_lines_per_us;
  double lines_of_uneven_wide, lines_of_uneven_narrow, lines_of_split_sectors;
  double cycles_per_us;              // an SM's clock, less what the multiplying warpgroups wait
  double stage_us;                   // of a stage of the pipeline, in one tile's share of K
  double element_store_us_per_byte;  // of D where it takes no 16 bytes along the wide operand
  // Of a tile, which nothing hides: sums over the cluster, and stores. Where more than two CTAs
  // share K, few warps finish what all have multiplied.
  double tile_us, tile_us_per_column, many_splits_us_per_column;
  double splitting_us[4];  // of a cluster that splits K in 1, 2, 4 and 8
};

// Fitted to 1405 times of 190 shapes (M or N 64 to 6000, in layers from 64 rows on), 4.9 % off on
// average; of layers of 8 to 64 rows, which were not among them, 1.4 %. Then moved by hand to 1276
// shapes of 1 to 200 rows (layers and random ones), old and new choice by turns: what a tile's end
// takes, what many columns lose, parts of K in 4 and 8, SMs without a tile.
constexpr Costs kCosts{.launch_us = 4.195,
                       .ramp_us = 2.3,
                       .memory_bytes_per_us = 4.493e6,
                       .large_loss = 0.08,
                       .widest_large_loss = 0.15,
                       .through_l2_loss = 0.03,
                       .uneven_k_loss = 0,
                       .uneven_loss = 0,
                       .kept_in_l2 = 1.47,
                       .unevenness = 0.47,
                       .idleness = 0.05,
                       .l2_lines_per_us = 140.2e3,
                       .sm_lines_per_us = 1425,
                       .lines_of_uneven_wide = 1.644,
                       .lines_of_uneven_narrow = 1.644,
                       .lines_of_split_sectors = 1.644,
                       .cycles_per_us = 1978,
                       .stage_us = 0.01273,
                       .element_store_us_per_byte = 1.43e-7,
                       .tile_us = 0.992,
                       .tile_us_per_column = 0.002,
                       .many_splits_us_per_column = 0.0069,
                       .splitting_us = {0, 0.61, 0.9, 1.5}};

// Where takes_33_to_128_costs. Fitted with the other kernels' to 750 products in all tiles and 2200
// in some: by what the choice loses, and a little by the error of the estimates, 5.8 % where they
// are near the best.
constexpr Costs kCosts33To128{.launch_us = 4.571,
                              .ramp_us = 1.103,
                              .memory_bytes_per_us = 4.943e6,
                              .large_loss = 0,
                              .widest_large_loss = 0,
                              .through_l2_loss = 0.16,
                              .uneven_k_loss = 0.146,
                              .uneven_loss = 0.2314,
                              .kept_in_l2 = 1.205,
                              .unevenness = 0.7343,
                              .idleness = 0.04002,
                              .l2_lines_per_us = 96.67e3,
                              .sm_lines_per_us = 1436,
                              .lines_of_uneven_wide = 1.347,
                              .lines_of_uneven_narrow = 1.631,
                              .lines_of_split_sectors = 2.78,
                              .cycles_per_us = 1618,
                              .stage_us = 0,
                              .element_store_us_per_byte = 8.75e-7,
                              .tile_us = 0.2876,
                              .tile_us_per_column = 0.003358,
                              .many_splits_us_per_column = 0.01112,
                              .splitting_us = {0, 1.535, 0.07965, 1.042}};

constexpr double kRampBytes = 15.6e6, kLargeLossBytes = 200e6, kWidestLargeLossBytes = 400e6;
// With up to 16 columns and K in parts, where W lies across K and its lines begin within a tile.
constexpr double kUnevenSplitsLoss = 1.08;
// Of a narrow operand across K, of which a line for each k holds little: up to 8 rows, up to 32,
// and up to 63.
constexpr double kLinesOfHalfSector = 7, kLinesOfNarrow = 2.1, kLinesOfPartOfBox = 2.897;
constexpr int64_t kHalfSector = 8, kNarrow = 32;
constexpr double kMinWgmmaCycles = 18;

// Of a cluster that splits K in 1, 2, 4 and 8.
struct Splitting {
  int splits;
  double sm_share;  // of the SMs that such clusters find room on: GPCs are not multiples of four
};
constexpr Splitting kSplittings[] = {{1, 1.0}, {2, 1.0}, {4, 0.92}, {8, 0.92}};

// What is in flight for an SM where X is small: at least so much, in so many stages. More only
// delays the first tiles' last bytes.
constexpr int kEnoughBytes = 128 * 1024, kEnoughStages = 5;
// And elsewhere at most (a stage more costs up to 1 % of large problems).
constexpr int kMaxPipelineBytes = 196 * 1024;

int64_t clusters_of(const DeviceInfo& device, const Splitting& splitting) {
  return static_cast<int64_t>(device.sm_count * splitting.sm_share) / splitting.splits;
}

struct Candidate {
  int rows, columns;
  Splitting splitting;
};

class Model {
 public:
  using Candidate = skinny::Candidate;

  Model(const GemmProblem& p, const DeviceInfo& device)
      : problem_(p),
        device_(device),
        view_(view_of(p)),
        of_33_to_128_(takes_33_to_128_costs(p)),
        costs_(of_33_to_128_ ? kCosts33To128 : kCosts) {
    const auto& gpu = choose::constants_of(device);
    memory_bytes_per_us_ = costs_.memory_bytes_per_us * gpu.dram_speed;
    l2_lines_per_us_ = costs_.l2_lines_per_us * gpu.l2_speed;
    sm_lines_per_us_ = costs_.sm_lines_per_us * gpu.clock_speed;
    cycles_per_us_ = costs_.cycles_per_us * gpu.clock_speed;
    const int64_t wide_stride = view_.wide_is_b ? p.d_col_stride : p.d_row_stride;
    const int64_t narrow_stride = view_.wide_is_b ? p.d_row_stride : p.d_col_stride;
    vector_store_ = wide_stride == 1 && narrow_stride % 8 == 0;
  }

  template <typename Search>
  void candidates(Search& search) const {
    for (const Splitting& splitting : kSplittings) {
      if (splitting.splits > 1 && problem_.k < splitting.splits * 128) break;
      if (clusters_of(device_, splitting) == 0) break;
      for (const int columns : kColumns) {
        if (columns_fit(columns)) of_rows(columns, splitting, search);
      }
    }
  }

  Estimate estimate(const Candidate& c, double limit) const;
  Choice choice(const Candidate& c) const;

 private:
  // One tile over all of a small narrow side; else the widths that read W the fewest times.
  bool columns_fit(int columns) const {
    constexpr int kMax = std::end(kColumns)[-1], kMinOfMany = 48;
    if (!view_.narrow.k_major && columns % kSwizzleElements != 0) return false;
    const int64_t extent = view_.narrow.extent;
    if (extent > kMax) return columns >= kMinOfMany;
    const int granule = view_.narrow.k_major ? 8 : kSwizzleElements;
    return *std::ranges::lower_bound(kColumns, round_up<int64_t>(extent, granule)) == columns;
  }

  // Tiles that give every cluster the same number of them, in as few waves as can be or a few more.
  template <typename Search>
  void of_rows(int columns, const Splitting& splitting, Search& search) const {
    constexpr int kMax = kMaxWarpgroups * kWarpgroupRows, kMoreWaves = 3;
    for (const int rows : {kWarpgroupRows, kMax}) search.consider({rows, columns, splitting});
    if (!view_.wide.k_major) return;  // loaded 64 rows at once
    const int64_t extent = view_.wide.extent;
    const int64_t others = ceil_div<int64_t>(view_.narrow.extent, columns) * view_.batch;
    const int64_t clusters = clusters_of(device_, splitting);
    const int64_t fewest = ceil_div(ceil_div<int64_t>(extent, kMax) * others, clusters);
    for (int64_t waves = fewest; waves <= fewest + kMoreWaves; ++waves) {
      const int64_t wide_tiles = std::max<int64_t>(1, clusters * waves / others);
      const int64_t rows = round_up<int64_t>(ceil_div(extent, wide_tiles), 8);
      // A box of few rows costs the producer as much as one of many.
      if (rows < (waves == 1 ? 32 : 48)) break;
      if (rows <= kMax) search.consider({static_cast<int>(rows), columns, splitting});
    }
  }

  int64_t tiles_of(const Candidate& c) const {
    return ceil_div<int64_t>(view_.wide.extent, c.rows) *
           ceil_div<int64_t>(view_.narrow.extent, c.columns) * view_.batch;
  }

  double large_loss_of(const Candidate& c, double memory) const {
    if (is_large_33_to_128(problem_)) return costs_.through_l2_loss;
    if (c.columns > 96)
      return costs_.widest_large_loss * std::min(1.0, memory / kWidestLargeLossBytes);
    if (streams_past_l2(view_, problem_.k)) {
      return costs_.large_loss * std::min(1.0, memory / kLargeLossBytes);
    }
    return of_33_to_128_ ? 0 : costs_.through_l2_loss;
  }

  // Of things that overlap: a little more than the longest.
  static double together(double a_us, double b_us, double c_us, double d_us) {
    const auto fourth = [](double x) { return x * x * x * x; };
    return std::sqrt(std::sqrt(fourth(a_us) + fourth(b_us) + fourth(c_us) + fourth(d_us)));
  }

  double uneven_loss(const Candidate& c) const {
    const double within = 1 - row_begins(view_.wide).with_line;
    // Two tiles want such a line, and clusters are less in step than CTAs alone.
    const bool splits = within > 0 && !view_.wide.k_major && c.splitting.splits > 1;
    return (splits && c.columns <= 16 ? kUnevenSplitsLoss : 1) *
           (1 + within * (view_.wide.k_major ? costs_.uneven_k_loss : costs_.uneven_loss));
  }

  // That 128 bytes of a row lie in.
  double wide_lines() const {
    return lines_of_row(row_begins(view_.wide), costs_.lines_of_uneven_wide);
  }
  double narrow_lines() const {
    const Matrix& x = view_.narrow;
    if (!x.k_major && x.extent <= kHalfSector) return kLinesOfHalfSector;
    if (!x.k_major && x.extent <= kNarrow) return kLinesOfNarrow;
    if (!x.k_major && x.extent < kSwizzleElements) return kLinesOfPartOfBox;
    return lines_of_row(row_begins(x), costs_.lines_of_uneven_narrow);
  }
  double lines_of_row(const RowBegins& begins, double uneven) const {
    if (!of_33_to_128_) return begins.with_line < 1 ? uneven : 1;  // to which kCosts are fitted
    return begins.lines(costs_.lines_of_split_sectors, uneven);
  }
  static RowBegins row_begins(const Matrix& x) {
    return sm90::row_begins(x.k_major ? x.stride : x.k_stride);
  }

  const GemmProblem& problem_;
  const DeviceInfo& device_;
  View view_;
  bool of_33_to_128_;
  const Costs& costs_;
  // The costs' on this GPU.
  double memory_bytes_per_us_, l2_lines_per_us_, sm_lines_per_us_, cycles_per_us_;
  bool vector_store_;
};

Choice Model::choice(const Candidate& c) const {
  const int stage = stage_bytes(c.rows, c.columns);
  const int most =
      (kMaxSmemBytes - beside_pipeline_bytes(c.rows, c.columns, c.splitting.splits)) / stage;
  const int enough =
      c.columns <= 16 ? std::max(kEnoughStages, kEnoughBytes / stage) : kMaxPipelineBytes / stage;
  const int64_t clusters = std::min(tiles_of(c), clusters_of(device_, c.splitting));
  return {.config = Config{.rows = c.rows,
                           .columns = c.columns,
                           .stages = std::min({most, enough, kMaxStages}),
                           .splits = c.splitting.splits,
                           .ctas = static_cast<int>(clusters) * c.splitting.splits},
          .reason = "a stream over the wide operand, the same share of it for every SM"};
}

Estimate Model::estimate(const Candidate& c, double) const {
  const auto tiles = static_cast<double>(tiles_of(c));
  const auto clusters = std::min(tiles, static_cast<double>(clusters_of(device_, c.splitting)));
  const double waves =
      static_cast<double>(ceil_div(static_cast<int64_t>(tiles), static_cast<int64_t>(clusters)));
  const auto k = static_cast<double>(problem_.k);
  const auto wide = static_cast<double>(view_.wide.extent);
  const auto narrow = static_cast<double>(view_.narrow.extent);
  const auto batch = static_cast<double>(view_.batch);
  const double memory = 2 * wide * k * (view_.wide.batch_stride != 0 ? batch : 1) +
                        2 * batch * wide * narrow +
                        2 * narrow * k * (view_.narrow.batch_stride != 0 ? batch : 1);
  const double large_loss = large_loss_of(c, memory);
  const double idle = static_cast<double>(clusters_of(device_, c.splitting)) / clusters - 1;
  const double memory_us = memory / memory_bytes_per_us_ * (1 + large_loss) *
                           (narrow > c.columns ? costs_.kept_in_l2 : 1.0) * uneven_loss(c) *
                           (1 + costs_.unevenness * (waves * clusters / tiles - 1) +
                            costs_.idleness * std::min(1.0, idle));
  const double k_steps = std::ceil(k / kSwizzleElements);
  const double k_steps_of_cta = std::ceil(k_steps / c.splitting.splits);
  // What is not along K comes in whole boxes.
  const double narrow_rows = view_.narrow.k_major ? std::min<double>(c.columns, narrow) : c.columns;
  const double lines_of_step = wide_lines() * c.rows + narrow_lines() * narrow_rows;
  const double l2_us = tiles * k_steps * lines_of_step / l2_lines_per_us_;
  const double intake_us = waves * k_steps_of_cta * lines_of_step / sm_lines_per_us_;
  const int warpgroups = warpgroups_of(c.rows);
  const double us_per_column =
      c.splitting.splits > 2 ? costs_.many_splits_us_per_column : costs_.tile_us_per_column;
  const double multiply_us = waves * k_steps_of_cta * 4 * warpgroups *
                             std::max(c.columns / 2.0, kMinWgmmaCycles) / cycles_per_us_;
  const double ramp_us = costs_.ramp_us * std::min(1.0, memory / kRampBytes);
  const double stores_us =
      vector_store_ ? 0 : 2 * batch * wide * narrow * costs_.element_store_us_per_byte;
  const double splitting_us =
      costs_.splitting_us[std::bit_width(static_cast<unsigned>(c.splitting.splits)) - 1];
  const double tiles_us = waves * (costs_.tile_us + us_per_column * c.columns * warpgroups);
  const double stages_us = costs_.stage_us * k_steps_of_cta / boxes_of(warpgroups, c.columns);
  return {.us = costs_.launch_us + ramp_us + together(memory_us, l2_us, intake_us, multiply_us) +
                stores_us + splitting_us + tiles_us + stages_us,
          .parts = {.launch = costs_.launch_us,
                    .first_bytes = ramp_us,
                    .dram = memory_us,
                    .l2 = l2_us,
                    .intake = intake_us,
                    .mma = multiply_us,
                    .issue = stages_us,
                    .exchange = splitting_us,
                    .epilogue = stores_us + tiles_us}};
}

}  // namespace

std::optional<Scored<Choice>> select(const GemmProblem& p, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  // Beyond this many rows and columns the kernel has nothing over that of sm90/ (measured: 900 rows
  // take 1.3x to 1.5x the time).
  constexpr int64_t kMaxNarrow = 640, kMaxTiles = int64_t{1} << 30;
  if (device.capability != 90 || p.dtype == DType::kF32 || p.k == 0) return std::nullopt;
  if (p.alpha != 1.0f || p.beta != 0.0f || p.batch_dims > 1) return std::nullopt;
  if (!extents_fit_tma(p) || !a_fits_tma(p) || !b_fits_tma(p)) return std::nullopt;
  const int64_t batch = p.batch_dims > 0 ? p.batch[0].size : 1;
  if (std::min(p.m, p.n) > kMaxNarrow) return std::nullopt;
  if (ceil_div<int64_t>(p.m, 32) * ceil_div<int64_t>(p.n, 8) * batch > kMaxTiles)
    return std::nullopt;
  return choose::pick<Choice>(Model(p, device), listing);
}

}  // namespace xgemm::cuda::gemm::sm90::skinny
