#include "cuda/gemm/sm90/single_tile/select.h"

#include <algorithm>
#include <cmath>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/sm90/row_begins.h"
#include "cuda/gemm/sm90/single_tile/select_k_major.h"
#include "cuda/gemm/sm90/single_tile/tile.h"
#include "cuda/gemm/sm90/swap.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90::single_tile {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// What parts of a product take, on an H200 from a cold L2.
struct Costs {
  double launch_us;            // and until a CTA's first operands are there
  double ramp_us, ramp_bytes;  // more, for problems of this size on
  // Little is in flight; and by how much the rate is higher for problems of 250 MB and more.
  double memory_bytes_per_us, large_gain;
  // Lines of 128 bytes: that one SM takes in, and that L2 gives; and those that count for every 128
  // bytes of a row which begins within a line, or within a sector of 32 bytes.
  double sm_lines_per_us, l2_lines_per_us, lines_of_uneven_row, lines_of_split_sectors;
  // Of a stage of K, at least, and more where a cluster shares its operands; of each box of 64 rows
  // of an operand that is not along K, alone and shared; and the clock, where the tensor cores are
  // what takes time.
  double stage_us, shared_stage_us, box_us, shared_box_us, cycles_per_us;
  // Of CTAs after the first of an SM: of several that it holds at once, and of one after another.
  double wave_us, whole_wave_us;
  double store_us;  // of each element of a tile
  // Until the CTAs of a cluster of two or four have met; and of the time for memory, what it costs
  // that the last wave of such clusters leaves SMs idle.
  double pair_us, four_us, idle_fours_loss;
  // Of two warpgroups that add their sums of more than 64 columns, less where K is long and rows
  // begin with a line; and of the transpose's stores.
  double sums_us, sums_of_long_us, transpose_us;
  // Whether what overlaps takes the root of the sum of squares, or of fourth powers.
  bool by_squares;
};

// Fitted to 488 shapes of 64 to 5000 in four layouts, log-uniform ones and layers of 136 to 900
// rows, each in every tile and cluster: by the 20,000 times that were no more than 1.4 times the
// best, 4.9 % off (root mean square). The launch, the clock and memory's rate are moved so that the
// choice among all kernels loses least: it takes 1.7 % longer than the best.
constexpr Costs kCosts{.launch_us = 4.6,
                       .ramp_us = 0.7946,
                       .ramp_bytes = 4.332e6,
                       .memory_bytes_per_us = 3.3e6,
                       .large_gain = 0,
                       .sm_lines_per_us = 1661,
                       .l2_lines_per_us = 1.265e5,
                       .lines_of_uneven_row = 1.711,
                       .lines_of_split_sectors = 2.961,
                       .stage_us = 0.06607,
                       .shared_stage_us = 0.08559,
                       .box_us = 0,
                       .shared_box_us = 0.008324,
                       .cycles_per_us = 1650,
                       .wave_us = 0.6697,
                       .whole_wave_us = 1.775,
                       .store_us = 2.915e-5,
                       .pair_us = 0.3892,
                       .four_us = 0.3892,
                       .idle_fours_loss = 0,
                       .sums_us = 0.1767,
                       .sums_of_long_us = 0.1,
                       .transpose_us = 0.3529,
                       .by_squares = false};

// Few rows or columns. Fitted to 170 shapes (squares, layers, log-uniform ones), 1820 times, 4.8 %
// off; the rates of memory and L2 to 300 others; those at the end, with the other kernels'
// constants, to 570 products of up to 128 rows.
constexpr int64_t kMaxSkinny = 128;
constexpr Costs kSkinnyCosts{.launch_us = 4.419,
                             .ramp_us = 0.9196,
                             .ramp_bytes = 4.332e6,
                             .memory_bytes_per_us = 3.582e6,
                             .large_gain = 0,
                             .sm_lines_per_us = 1956,
                             .l2_lines_per_us = 1.228e5,
                             .lines_of_uneven_row = 1.994,
                             .lines_of_split_sectors = 1.994,
                             .stage_us = 0.1014,
                             .shared_stage_us = 0.149,
                             .box_us = 0.001162,
                             .shared_box_us = 0.03,
                             .cycles_per_us = 1488,
                             .wave_us = 0.2022,
                             .whole_wave_us = 1.921,
                             .store_us = 3.684e-5,
                             .pair_us = 0.2041,
                             .four_us = 0.2041,
                             .idle_fours_loss = 0,
                             .sums_us = 0.35,
                             .sums_of_long_us = 0.1,
                             .transpose_us = 0.12,
                             .by_squares = false};

// Where takes_33_to_128_costs. Fitted with the other kernels' to 750 products in all tiles and 2200
// in some.
constexpr Costs kCosts33To128{.launch_us = 3.697,
                              .ramp_us = 0,
                              .ramp_bytes = 4.332e6,
                              .memory_bytes_per_us = 3.422e6,
                              .large_gain = 0.9167,
                              .sm_lines_per_us = 1324,
                              .l2_lines_per_us = 104.4e3,
                              .lines_of_uneven_row = 1.248,
                              .lines_of_split_sectors = 2.229,
                              .stage_us = 0.04141,
                              .shared_stage_us = 0.06746,
                              .box_us = 0.02324,
                              .shared_box_us = 0.007939,
                              .cycles_per_us = 2167,
                              .wave_us = 0.5252,
                              .whole_wave_us = 2.537,
                              .store_us = 67.71e-6,
                              .pair_us = 1.959,
                              .four_us = 0.7966,
                              .idle_fours_loss = 0.28,
                              .sums_us = 0.9651,
                              .sums_of_long_us = 0.9651,
                              .transpose_us = 0.8979,
                              .by_squares = true};
constexpr double kFullRateBytes = 273.3e6;
// For each k of few rows that lie across K, lines: up to 8, and more.
constexpr double kLinesOfHalfSector = 10, kLinesOfNarrow = 1.5, kLines33To128 = 2.32;
constexpr int64_t kHalfSector = 8;
// What the estimate lacks where few rows or columns stream: of long K, and of fewer rows, that lie
// along K, of any.
constexpr int64_t kMaxVerySkinny = 40, kLongK = 2500;
constexpr double kSkinnyLongK = 1.14, kSkinnyShortK = 1.16;

// Of sums that CTAs with half of K each exchange, and for each column.
constexpr double kHalvesUs = 0.3009, kHalvesUsPerColumn = 0.006697;
constexpr double kWideTransposeUs = 0.6;  // of a wide tile's stores of the transpose
constexpr int kLongChunks = 32;
// Columns of the wide tiles over the transpose that suit few rows, but more than narrow ones have.
constexpr int kWideColumnsOfFew = 96, kMaxNarrowOfSkinny = 64;
// Of tiles where is_large_33_to_128: larger ones took up to 8 % longer than estimated.
constexpr int kMaxRowsOfLarge = 128, kMaxColumnsOfLarge = 144;
constexpr int kMaxSmemBytes = 227 * 1024;

double fourth(double x) { return x * x * x * x; }

// What a kernel is compiled for, the tile it is to take, CTAs that share an operand, parts of K.
class Side;

struct Candidate {
  const Side* side;
  const Shape* shape;
  int tile_m, tile_n, cluster, splits = 1;
  Clusters clusters{};
  int64_t ctas = 0;
};

// The problem or, `is_swapped`, the same from the other side.
class Side {
 public:
  Side(const GemmProblem& p, const DeviceInfo& device, bool is_swapped)
      : p_(p),
        swapped_(is_swapped),
        skinny_(std::min(p.m, p.n) <= kMaxSkinny),
        of_33_to_128_(takes_33_to_128_costs(p)),
        large_(is_large_33_to_128(p)),
        costs_(of_33_to_128_ ? kCosts33To128
               : skinny_     ? kSkinnyCosts
                             : kCosts),
        vector_store_(d_fits_tma(p) || d_fits_tma(swapped(p))),
        sm_count_(device.sm_count),
        room_(std::max(1, device.sm_count / 11 * 10)),
        a_mn_(!a_k_major(p)),
        b_mn_(!b_k_major(p)),
        chunks_(ceil_div<int64_t>(p.k, kChunkK)) {
    const auto& gpu = choose::constants_of(device);
    cycles_per_us_ = costs_.cycles_per_us * gpu.clock_speed;
    sm_lines_per_us_ = costs_.sm_lines_per_us * gpu.clock_speed;
    l2_lines_per_us_ = costs_.l2_lines_per_us * gpu.l2_speed;
    for (int i = 0; i < p.batch_dims; ++i) batch_ *= p.batch[i].size;
    bytes_ =
        2.0 * static_cast<double>(batch_) * static_cast<double>(p.m * p.k + p.n * p.k + p.m * p.n);
    memory_us_ = bytes_ / (costs_.memory_bytes_per_us * gpu.dram_speed) /
                 (1 + costs_.large_gain * std::min(1.0, bytes_ / kFullRateBytes));
    const int64_t a_stride = a_mn_ ? p.a.col_stride : p.a.row_stride;
    const int64_t b_stride = b_mn_ ? p.b.row_stride : p.b.col_stride;
    a_lines_ = lines_of_row(a_stride), b_lines_ = lines_of_row(b_stride);
    splits_sectors_ = row_begins(a_stride).in_sector + row_begins(b_stride).in_sector > 0;
  }

  template <typename Search>
  void candidates(Search& search) const {
    if (batch_ > kMaxGrid) return;
    for (const Shape& shape : kShapes) {
      if (!may_suit(shape)) continue;
      if (of_33_to_128_ || is_skinny_side(a_mn_, p_.m) || is_skinny_side(b_mn_, p_.n))
        consider_clusters(shape, search);
      if (large_) consider_whole_waves(shape, search);
      if (shares()) {
        consider({this, &shape, shape.block_m, shape.block_n, kMinCluster}, search);
        if (!skinny_ || (!a_mn_ && !b_mn_)) consider_clusters(shape, search);
      }
      consider(even(shape, 1), search);
    }
  }

  Choice choice(const Candidate& c) const {
    return {.config = Config{.shape = &launched(c),
                             .tile_m = c.tile_m,
                             .tile_n = c.tile_n,
                             .clusters = c.clusters,
                             .splits = c.splits,
                             .ctas = static_cast<int>(c.ctas),
                             .swapped = swapped_},
            .reason = "few tiles: a CTA for each of them, soon started and soon stored"};
  }

  Estimate estimate(const Candidate& c) const {
    const int block_m = c.shape->block_m, block_n = c.shape->block_n;
    const int64_t ctas = c.ctas;
    const int loaded_n = b_mn_ ? round_up(block_n, kChunkK) : c.tile_n;
    const double a_lines = lines(a_mn_, p_.m, c.tile_m, a_lines_);
    const double b_lines = lines(b_mn_, p_.n, loaded_n, b_lines_);
    const int boxes = (a_mn_ ? block_m : 0) / kChunkK + (b_mn_ ? loaded_n : 0) / kChunkK;
    const bool in_room = of_33_to_128_ && c.cluster > 2;
    const auto waves = static_cast<double>(ceil_div<int64_t>(ctas, in_room ? room_ : sm_count_));
    const double idle =
        ctas > room_ ? waves * static_cast<double>(room_) / static_cast<double>(ctas) - 1 : 0;
    const auto chunks = static_cast<double>(ceil_div<int64_t>(chunks_, c.splits));
    const double from_l2 = a_lines / c.clusters.along_n + b_lines / c.clusters.along_m;
    // What an SM asks for, and no less than what it gets.
    const double sm_lines = std::max(
        from_l2,
        static_cast<double>(std::min<int64_t>(p_.m, c.tile_m) + std::min<int64_t>(p_.n, loaded_n)));
    const int64_t stage_bytes = (block_m + std::max(loaded_n, block_n)) * kChunkK * 2;
    const int64_t smem_bytes = std::min<int64_t>(chunks_, c.shape->stages) * stage_bytes + 2048;
    const double wave_us = kMaxSmemBytes / smem_bytes > 1 ? costs_.wave_us : costs_.whole_wave_us;
    // wgmma takes half as many cycles as columns for each of its 64 rows and 16 k.
    const double multiply_us = 2.0 * block_m / 64 * block_n / cycles_per_us_;
    const double stage_us = c.cluster > 1 ? costs_.shared_stage_us : costs_.stage_us;
    const double box_us = c.cluster > 1 ? costs_.shared_box_us : costs_.box_us;
    const double intake_us = waves * chunks * sm_lines / sm_lines_per_us_;
    const double l2_us = static_cast<double>(ctas) * chunks * from_l2 / l2_lines_per_us_;
    const double mma_us = waves * chunks * (std::max(stage_us, multiply_us) + box_us * boxes);
    const double dram_us = memory_us_ * (c.cluster > 2 ? 1 + costs_.idle_fours_loss * idle : 1);
    const double ramp_us = costs_.ramp_us * std::min(1.0, bytes_ / costs_.ramp_bytes);
    const double waves_us = wave_us * (waves - 1);
    const double store_us = costs_.store_us * c.tile_m * c.tile_n / c.splits;
    const double meet_us = c.cluster > 2 ? costs_.four_us : c.cluster > 1 ? costs_.pair_us : 0;
    const double halves_us = c.splits > 1 ? kHalvesUs + kHalvesUsPerColumn * c.tile_n : 0;
    const double two_us = block_m == 64 && block_n > 64 ? sums_us() : 0;
    const double other_us = transpose_us(*c.shape);
    return {.us = costs_.launch_us + ramp_us + together(intake_us, l2_us, mma_us, dram_us) +
                  waves_us + store_us + meet_us + halves_us + two_us + other_us,
            .parts = {.launch = costs_.launch_us,
                      .first_bytes = ramp_us + meet_us,
                      .dram = dram_us,
                      .l2 = l2_us,
                      .intake = intake_us,
                      .mma = mma_us,
                      .exchange = halves_us + two_us,
                      .epilogue = waves_us + store_us + other_us}};
  }

 private:
  static constexpr int64_t kMaxGrid = 65535;  // of its rows, and of a batch
  // Beyond them persistent CTAs are always ahead, but where large operands stream.
  static constexpr int64_t kMaxWaves = 4, kMaxWavesOfLarge = 12;

  bool may_suit(const Shape& shape) const {
    if (shape.k_major_only || !shape.compiled_for(a_mn_, b_mn_)) return false;
    if (large_ && (shape.block_m > kMaxRowsOfLarge || shape.block_n > kMaxColumnsOfLarge)) {
      return false;
    }
    // Where both of its sides are long the other side of a product has nothing over it, but columns
    // that are cut, or that are as few as the rows of a product.
    const bool fits_skinny = (large_ || (of_33_to_128_ && b_mn_)) && p_.n > kMaxNarrowOfSkinny &&
                             shape.block_n == kWideColumnsOfFew;
    if (swapped_ && shape.block_m > 64 && (!a_mn_ || b_mn_) && !fits_skinny) return false;
    // An activation goes through many sums slowly, and so do stores of single elements.
    return !shape.wide() || (p_.activation == Activation::kNone && vector_store_);
  }

  // Whether an operand across K fills little of its boxes: CTAs gain by sharing them.
  static bool is_skinny_side(bool mn, int64_t extent) { return mn && extent < kChunkK; }

  // Where both operands lie along K there is one with fewer columns than the one considered, with
  // other stages.
  const Shape& launched(const Candidate& c) const {
    return shape_of(c.tile_m, c.tile_n, !a_mn_ && !b_mn_);
  }

  // As few tiles as can be, all of one size. Boxes of an operand that is not along K are not cut.
  Candidate even(const Shape& shape, int cluster) const {
    const auto cut = [](int64_t extent, int block) {
      const int64_t parts = ceil_div<int64_t>(extent, block);
      return static_cast<int>(round_up<int64_t>(ceil_div(extent, parts), 8));
    };
    return {this, &shape, a_mn_ ? shape.block_m : cut(p_.m, shape.block_m),
            b_mn_ ? shape.block_n : cut(p_.n, shape.block_n), cluster};
  }

  // The larger side in tiles that fill whole waves: as few as can be, or a few more. (In clusters
  // of four, which leave SMs without any, they take longer than in two.)
  template <typename Search>
  void consider_whole_waves(const Shape& shape, Search& search) const {
    constexpr int64_t kMoreWaves = 2;
    const bool cuts_m = p_.m > p_.n;
    Candidate c = even(shape, 1);
    const int64_t extent = cuts_m ? p_.m : p_.n, block = cuts_m ? shape.block_m : shape.block_n;
    const int64_t others =
        cuts_m ? ceil_div<int64_t>(p_.n, c.tile_n) : ceil_div<int64_t>(p_.m, c.tile_m);
    const int64_t fewest = ceil_div(ceil_div(extent, block) * others, sm_count_);
    for (int64_t waves = fewest; waves < fewest + kMoreWaves; ++waves) {
      const int64_t tiles = std::max<int64_t>(1, sm_count_ * waves / others);
      const int64_t cut = round_up<int64_t>(ceil_div(extent, tiles), 8);
      if (cut > block) continue;
      (cuts_m ? c.tile_m : c.tile_n) = static_cast<int>(cut);
      for (c.cluster = 1; c.cluster <= kMinCluster; ++c.cluster) consider(c, search);
    }
  }

  template <typename Search>
  void consider_clusters(const Shape& shape, Search& search) const {
    // Of wide tiles beside a large operand four take longer than estimated.
    const int most = large_ && shape.wide() ? kMinCluster : kMaxCluster;
    for (int cluster = kMinCluster; cluster <= most; cluster *= 2) {
      consider(even(shape, cluster), search);
    }
  }

  template <typename Search>
  void consider(const Candidate& c, Search& search) const {
    // A smaller one's, which has been considered.
    const Shape& least = shape_of(c.tile_m, c.tile_n, false);
    if (least.block_m != c.shape->block_m || least.block_n != c.shape->block_n) return;
    consider_splits(c, search);
    const Shape& shape = launched(c);
    if (!skinny_ && shares() && takes_halves(shape.block_m, shape.block_n) &&
        halves_fill(chunks_, shape.stages)) {
      Candidate halves = c;
      halves.splits = 2;
      consider_splits(halves, search);
    }
  }

  template <typename Search>
  void consider_splits(Candidate c, Search& search) const {
    // What is chosen without pairs of such tiles takes 5 % less (37 products).
    const bool square = !of_33_to_128_ && c.shape->block_m == 128 && c.shape->block_n == 128;
    if (square && c.cluster == kMinCluster && c.splits == 1) return;
    const int64_t rows = ceil_div<int64_t>(p_.m, c.tile_m);
    const int64_t columns = ceil_div<int64_t>(p_.n, c.tile_n);
    const int64_t most = sm_count_ * (large_ ? kMaxWavesOfLarge : kMaxWaves);
    if (rows >= kMaxGrid || rows > most || columns > most) return;
    c.clusters = clusters_of(rows, columns, c.cluster);
    if (c.tile_m % c.clusters.along_n != 0 || c.tile_n % c.clusters.along_m != 0) return;
    c.ctas = round_up<int64_t>(rows, c.clusters.along_m) *
             round_up<int64_t>(columns, c.clusters.along_n) * batch_ * c.splits;
    const bool large_cluster = c.cluster * c.splits > 2;
    const int64_t room = large_cluster ? room_ : sm_count_;
    const bool one_wave = !of_33_to_128_ && (c.shape->wide() || large_cluster || c.splits > 1);
    if (c.ctas > (one_wave ? room : most)) return;
    search.consider(c);
  }

  // Of things that overlap: a little more than the longest.
  double together(double a_us, double b_us, double c_us, double d_us) const {
    if (costs_.by_squares) {
      return std::sqrt(a_us * a_us + b_us * b_us + c_us * c_us + d_us * d_us);
    }
    return std::sqrt(std::sqrt(fourth(a_us) + fourth(b_us) + fourth(c_us) + fourth(d_us)));
  }

  // Of a stage of K. A box across K takes as many as it has k.
  double lines(bool mn, int64_t extent, int tile, double of_row) const {
    if (is_skinny_side(mn, extent)) {
      if (of_33_to_128_) return kChunkK * kLines33To128;
      return kChunkK * (extent <= kHalfSector ? kLinesOfHalfSector : kLinesOfNarrow);
    }
    return static_cast<double>(std::min<int64_t>(extent, tile)) * of_row;
  }

  // Rows of both operands begin within a line.
  bool uneven() const { return a_lines_ > 1 && b_lines_ > 1; }

  // There alone multicast pays for itself (measured: up to 36 %; elsewhere it costs 1 to 8 %), and
  // halves of K do; of short K where some rows begin within a sector (else up to 17 % are lost).
  bool shares() const {
    return !of_33_to_128_ && uneven() && (skinny_ || splits_sectors_ || chunks_ >= kLongChunks);
  }

  double sums_us() const {
    return chunks_ >= kLongChunks && a_lines_ + b_lines_ == 2 ? costs_.sums_of_long_us
                                                              : costs_.sums_us;
  }

  double transpose_us(const Shape& shape) const {
    if (!swapped_) return 0;
    return shape.wide() ? kWideTransposeUs : costs_.transpose_us;
  }

  // Of 128 bytes of a row, on average: some rows begin with a line, and where the stride is an odd
  // multiple of 16 bytes every second one begins within a sector.
  double lines_of_row(int64_t stride) const {
    return row_begins(stride).lines(costs_.lines_of_split_sectors, costs_.lines_of_uneven_row);
  }

  const GemmProblem& p_;
  bool swapped_, skinny_, of_33_to_128_, large_;
  const Costs& costs_;
  double cycles_per_us_, sm_lines_per_us_, l2_lines_per_us_;  // the costs' on this GPU
  bool vector_store_;
  int64_t sm_count_, room_;  // SMs, and those that clusters of four find room on
  bool a_mn_, b_mn_;
  bool splits_sectors_;  // rows of an operand begin within a sector
  int64_t chunks_, batch_ = 1;
  double bytes_, memory_us_, a_lines_, b_lines_;
};

class Model {
 public:
  using Candidate = single_tile::Candidate;

  Model(const Side& side, const Side& other) : side_(side), other_(other) {}

  template <typename Search>
  void candidates(Search& search) const {
    side_.candidates(search);
    other_.candidates(search);
  }
  static Estimate estimate(const Candidate& c, double) { return c.side->estimate(c); }
  static Choice choice(const Candidate& c) { return c.side->choice(c); }

 private:
  const Side &side_, &other_;  // the latter swapped
};

}  // namespace

std::optional<Scored<Choice>> select(const GemmProblem& p, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  if (device.capability != 90 || p.dtype == DType::kF32 || p.k == 0) return std::nullopt;
  if (p.alpha != 1.0f || p.beta != 0.0f) return std::nullopt;
  if (!extents_fit_tma(p) || !a_fits_tma(p) || !b_fits_tma(p)) return std::nullopt;
  if (suits_k_major(p)) return select_k_major(p, device, listing);
  const GemmProblem other = swapped(p);
  const Side side(p, device, false), other_side(other, device, true);
  const size_t first = choose::size_of(listing);
  auto best = choose::pick<Choice>(Model(side, other_side), listing);
  const int64_t skinny = std::min(p.m, p.n);
  const bool skinny_k_major = p.m < p.n ? a_k_major(p) : b_k_major(p);
  double factor = 1;
  if (!takes_33_to_128_costs(p)) {
    if (skinny <= kMaxSkinny && p.k >= kLongK) {
      factor = kSkinnyLongK;
    } else if (skinny <= kMaxVerySkinny && skinny_k_major) {
      factor = kSkinnyShortK;
    }
  }
  choose::adjust(&best, listing, first,
                 [&](Choice&, Estimate& estimate) { estimate.us *= factor; });
  return best;
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
