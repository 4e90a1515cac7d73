#include "cuda/gemm/sm90/persistent/select.h"

#include <algorithm>
#include <cmath>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/sm90/persistent/shifted.h"
#include "cuda/gemm/sm90/persistent/tiles.h"
#include "cuda/gemm/sm90/row_begins.h"
#include "cuda/gemm/sm90/swap.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90::persistent {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// Fitted to an H200, cold L2, by what benchmarks/sweep_mul.py measures: 330 products of 100 to 8000
// rows, columns and k, layers and random ones in three layouts, in every tile and schedule. The
// choice among all kernels takes 2.1 % longer than the best (2.7 % before), and of the half that
// was held out 2.3 %.
struct Tile {
  int block_n, stages, cluster;
};
// Of the tensor cores' rate at the clock that they hold, what a tile's main loop reaches. (Pairs
// that share B wait for each other.)
constexpr double kEfficiency256Pair = 0.933, kEfficiency256 = 0.99;
constexpr double kEfficiency240Pair = 0.938, kEfficiency240 = 0.994;
constexpr double kEfficiency224Pair = 0.945, kEfficiency224 = 0.998;
constexpr double kEfficiency208Pair = 0.938, kEfficiency208 = 1;
constexpr double kEfficiency192Pair = 0.935, kEfficiency192 = 1.01;
constexpr double kEfficiency176Pair = 0.923, kEfficiency176 = 0.996;
constexpr double kEfficiency160Pair = 0.911, kEfficiency160 = 0.982;
constexpr double kEfficiency144Pair = 0.872, kEfficiency144 = 0.996;
constexpr double kEfficiency128Pair = 0.834, kEfficiency128 = 1.01;
// The same of products that take kPowerUs and more, at the power limit all the time, where waiting
// costs little. Of pairs a fit to 186 shapes, before the one above. Without a pair whole waves are
// as fast (0.999x over 28 shapes), but equal shares of K take 2 to 11 % longer: hence the factor.
constexpr double kPowerUs = 400, kAloneAtPower = 0.96;
constexpr double kEfficiencyOfPairAtPower[] = {0.83,  0.86, 0.893, 0.92, 0.955,
                                               0.947, 0.94, 0.955, 0.968};
// Tiles have 128, 144, ..., 256 columns.
constexpr int index_of(int block_n) { return (block_n - 128) / 16; }

double efficiency_of(int block_n, int cluster) {
  const double alone[] = {kEfficiency128, kEfficiency144, kEfficiency160,
                          kEfficiency176, kEfficiency192, kEfficiency208,
                          kEfficiency224, kEfficiency240, kEfficiency256};
  const double of_pair[] = {kEfficiency128Pair, kEfficiency144Pair, kEfficiency160Pair,
                            kEfficiency176Pair, kEfficiency192Pair, kEfficiency208Pair,
                            kEfficiency224Pair, kEfficiency240Pair, kEfficiency256Pair};
  return (cluster == kPair ? of_pair : alone)[index_of(block_n)];
}
double efficiency_at_power(int block_n, int cluster) {
  return kEfficiencyOfPairAtPower[index_of(block_n)] * (cluster == kPair ? 1 : kAloneAtPower);
}
#define XGEMM_SM90_TILE(BLOCK_N, STAGES) {BLOCK_N, STAGES, 1}, {BLOCK_N, STAGES, kPair},
constexpr Tile kTiles[] = {XGEMM_SM90_TILES(XGEMM_SM90_TILE)};
#undef XGEMM_SM90_TILE

constexpr double kLaunchUs = 5.03;  // and until a CTA's first operands are there
constexpr double kWaveUs = 1.19;    // of a tile after the first
constexpr double kStoreCyclesPerColumn = 16, kElementStoreCyclesPerColumn = 25;  // of a last tile
// Of memory, the time until it is reached, and lines of 128 bytes that L2 gives. A row that begins
// within a line takes parts of two of them for every 128 bytes. Memory is as fast as the bytes that
// a CTA has on their way allow, which is less than its pipeline where a tile reaches past an
// operand's end (1190 times of problems with up to 128 rows: 7 % off with it, 17 % without).
constexpr double kMemoryBytesPerUs = 3.77e6, kRampUs = 0.65, kRampBytes = 32e6;
constexpr double kBytesPerUsInFlight = 22.8;
constexpr double kLinesOfUnevenRow = 2.03, kLinesOfSplitSectors = 3;
constexpr double kL2LinesPerUs = 131e3;
// What tiles take where takes_33_to_128_costs, of the estimate: fitted with the other kernels'
// constants there; and where is_large_33_to_128.
constexpr double k33To128Us = 5.124, k33To128 = 0.9408, kLarge33To128 = 0.89;
// Where the last row (or column) of tiles is small, its CTAs run ahead of the others, and what does
// not stay in L2 meanwhile of the operand they have in common is read again: as much of it as is
// missing of a tile.
constexpr double kStaysBytes = 20e6;
constexpr int64_t kMaxAhead = 4;
// CTAs with equal shares of few tiles are at different k: of what does not stay in L2, so much is
// read for each tile anew (three products of long K). Pairs, which share B, take no such harm.
constexpr double kSharesAgain = 0.7;
// Of equal shares, for each part of a tile's sums that one cluster leaves to another, and for each
// 256 columns of one; and of the time for L2, since CTAs do not want the same lines at the same
// time any more: where there are no more tiles than clusters, or else for the share of them.
constexpr double kSharesUs = 2.32, kPartUs = 0.5, kLeaveUs = 1.2, kCompleteUs = 0.79;
constexpr double kSharesLoss = 0.29, kSharesLossOfPart = 0.5;
// Of the halves of K that two CTAs exchange, and for 256 columns of them.
constexpr double kHalvesUs = 1.47, kExchangeUs = 0.85;
// Where that is all there is to do, A the smaller operand and B along K, of the products' time.
constexpr double kFlatHalvesLoss = 0.06;
constexpr int kMinStepsToSplit = 8;
constexpr double kHeadsUs = 3;  // of the copy of a shifted A's heads

// Of things that overlap: a little more than the longest.
double together(double a_us, double b_us, double c_us) {
  const auto fourth = [](double x) { return x * x * x * x; };
  return std::sqrt(std::sqrt(fourth(a_us) + fourth(b_us) + fourth(c_us)));
}

// A way to go over the tiles.
struct Walk {
  int64_t clusters;
  int64_t steps, segments;  // of the busiest CTA: k-tiles, and tiles or parts of one
  int splits = 1;
  bool stream_k = false;
  double us = 0;  // for the sums of parts of K
  const char* reason = "fewest waves over the SMs, weighted by the tile's rate";
};

class Side;

struct Candidate {
  const Side* side;
  Tile tile;
  int64_t rows, columns;  // of tiles
  Walk walk;
};

// The problem or, `is_swapped`, the same from the other side.
class Side {
 public:
  Side(const GemmProblem& p, const DeviceInfo& device, bool is_swapped)
      : p_(p),
        swapped_(is_swapped),
        tma_store_(d_fits_tma(p) || d_fits_tma(swapped(p))),
        a_mn_(!a_k_major(p)),
        b_mn_(!b_k_major(p)),
        sm_count_(device.sm_count),
        k_tiles_(ceil_div<int64_t>(p.k, kBlockK)) {
    int64_t a_matrices = 1, b_matrices = 1;
    for (int i = 0; i < p.batch_dims; ++i) {
      batch_ *= p.batch[i].size;
      if (p.batch[i].a != 0) a_matrices *= p.batch[i].size;
      if (p.batch[i].b != 0) b_matrices *= p.batch[i].size;
    }
    const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n);
    const auto k = static_cast<double>(p.k);
    bytes_ = 2 * (m * k * static_cast<double>(a_matrices) +
                  n * k * static_cast<double>(b_matrices) + m * n * static_cast<double>(batch_));
    const auto& gpu = choose::constants_of(device);
    cycles_per_us_ = gpu.mma_cycles_per_us;
    memory_bytes_per_us_ = kMemoryBytesPerUs * gpu.dram_speed;
    l2_lines_per_us_ = kL2LinesPerUs * gpu.l2_speed;
    at_power_ = 2 * m * n * k * static_cast<double>(batch_) >
                kPowerUs * cycles_per_us_ * gpu.mma_flops_per_cycle * sm_count_;
    a_lines_ = m * lines_of_row(a_mn_ ? p.a.col_stride : p.a.row_stride);
    b_lines_ = n * lines_of_row(b_mn_ ? p.b.row_stride : p.b.col_stride);
  }

  template <typename Search>
  void candidates(Search& search) const {
    for (const Tile& tile : kTiles) {
      if (b_mn_ && tile.block_n % kSwizzleElements != 0) continue;  // whole boxes
      const int64_t rows = ceil_div<int64_t>(p_.m, int64_t{kBlockM} * tile.cluster);
      const int64_t columns = ceil_div<int64_t>(p_.n, tile.block_n);
      const int64_t tiles = rows * columns * batch_, most = sm_count_ / tile.cluster;
      if (tiles > kMaxTiles || most == 0 || least_us(tile, columns) >= search.limit()) continue;
      of_waves(tile, rows, columns, most, search);
      // A line of a shifted A is part of two stages, and CTAs at different k read it each time.
      if (a_fits_tma(p_)) of_stream_k(tile, rows, columns, most, search);
      if (tile.cluster == kPair) of_halves(tile, columns, most, search);
    }
  }

  Choice choice(const Candidate& c) const {
    const auto ctas = static_cast<int>(c.walk.clusters) * c.tile.cluster;
    return {
        .config = Config{.block_n = c.tile.block_n,
                         .stages = c.tile.stages,
                         .cluster = c.tile.cluster,
                         .splits = c.walk.splits,
                         .ctas = ctas,
                         .stream_k = c.walk.stream_k,
                         .shifted = false,
                         .swapped = swapped_,
                         .tma_store = tma_store_},
        .workspace_bytes = c.walk.stream_k ? stream_k_workspace(c.tile.block_n, ctas).bytes() : 0,
        .reason = c.walk.reason};
  }

  Estimate estimate(const Candidate& c) const {
    const auto& [side, tile, rows, columns, walk] = c;
    // m64nNk16 takes N / 2 cycles, of which a tile has 2 x 4 for each k-tile.
    const double rate =
        rate_of(tile, walk.segments > 1 ? tile.cluster / walk.splits : tile.cluster);
    const double multiply_us =
        static_cast<double>(walk.steps) * 4 * tile.block_n / (rate * cycles_per_us_);
    const auto segments = static_cast<double>(walk.segments);
    const double element_stores = tma_store_ ? 0 : kElementStoreCyclesPerColumn * segments;
    const double ramp_us = kRampUs * std::min(1.0, bytes_ / kRampBytes);
    const double lines_us = l2_us(rows, columns);
    const double dram_us = (bytes_ + read_again(tile, rows, columns, walk)) / memory_rate(tile);
    const double tiles_us = kWaveUs * (segments - 1);
    const double store_us =
        (kStoreCyclesPerColumn + element_stores) * tile.block_n / cycles_per_us_;
    return {.us = kLaunchUs + ramp_us + together(multiply_us, lines_us, dram_us) + walk.us +
                  tiles_us + store_us,
            .parts = {.launch = kLaunchUs,
                      .first_bytes = ramp_us,
                      .dram = dram_us,
                      .l2 = lines_us,
                      .mma = multiply_us,
                      .exchange = walk.us,
                      .epilogue = tiles_us + store_us}};
  }

 private:
  static constexpr int64_t kMaxTiles = int64_t{1} << 28;

  double rate_of(const Tile& tile, int sharers) const {
    return at_power_ ? efficiency_at_power(tile.block_n, sharers)
                     : efficiency_of(tile.block_n, sharers);
  }

  // What no walk takes less than: all SMs multiply all the time.
  double least_us(const Tile& tile, int64_t columns) const {
    const int64_t tiles = ceil_div<int64_t>(p_.m, kBlockM) * columns * batch_;
    const double steps = static_cast<double>(tiles * k_tiles_) / sm_count_;
    const double rate = std::max(rate_of(tile, 1), rate_of(tile, kPair));
    return kLaunchUs + steps * 4 * tile.block_n / (rate * cycles_per_us_);
  }

  template <typename Search>
  void of_waves(const Tile& tile, int64_t rows, int64_t columns, int64_t most,
                Search& search) const {
    const int64_t tiles = rows * columns * batch_, waves = ceil_div(tiles, most);
    // As few clusters as need the same number of waves: less power, the same time.
    search.consider(
        {this,
         tile,
         rows,
         columns,
         {.clusters = ceil_div(tiles, waves), .steps = waves * k_tiles_, .segments = waves}});
  }

  template <typename Search>
  void of_stream_k(const Tile& tile, int64_t rows, int64_t columns, int64_t most,
                   Search& search) const {
    const int64_t tiles = rows * columns * batch_, shared = shared_tiles_of(tiles, most);
    // Otherwise there is nothing to gain, or a cluster had nothing to do.
    if (tiles % most == 0 || shared * k_tiles_ < 2 * most) return;
    if (shared * k_tiles_ > kMaxTiles) return;
    const int64_t share = ceil_div(shared * k_tiles_, most), whole = (tiles - shared) / most;
    const auto parts = static_cast<double>(ceil_div(k_tiles_, share));
    const double loss = tiles <= most ? kSharesLoss
                                      : kSharesLossOfPart * static_cast<double>(shared) /
                                            static_cast<double>(tiles);
    search.consider(
        {this,
         tile,
         rows,
         columns,
         {.clusters = most,
          .steps = whole * k_tiles_ + share,
          .segments = whole + 1,
          .stream_k = true,
          .us = kSharesUs + kPartUs * parts +
                (kLeaveUs + kCompleteUs * parts) * tile.block_n / 256 + loss * l2_us(rows, columns),
          .reason = "no whole number of waves over the SMs: stream-K"}});
  }

  // The last wave by halves of K, where it has a tile for every second SM or fewer; before it CTAs
  // walk alone.
  template <typename Search>
  void of_halves(const Tile& tile, int64_t columns, int64_t most, Search& search) const {
    const int64_t rows = ceil_div<int64_t>(p_.m, kBlockM), tiles = rows * columns * batch_;
    const int64_t waves = tiles / (kPair * most), rest = tiles % (kPair * most);
    if (rest == 0 || rest > most || k_tiles_ < kMinStepsToSplit) return;
    if (waves > 0 && at_power_) return;  // SMs without a tile leave their power to the others
    // As few clusters as need the same number of waves.
    const int64_t least = ceil_div(tiles, kPair * waves + 1);
    const int64_t steps = waves * k_tiles_ + (k_tiles_ + 1) / 2;
    const double loss = waves == 0 && p_.m < p_.n && !b_mn_ ? kFlatHalvesLoss : 0;
    search.consider(
        {this,
         tile,
         rows,
         columns,
         {.clusters = kPair * waves * least <= tiles ? least : most,
          .steps = steps,
          .segments = waves + 1,
          .splits = 2,
          .us = kHalvesUs + kExchangeUs * tile.block_n / 256 +
                loss * static_cast<double>(4 * steps * tile.block_n) / cycles_per_us_,
          .reason = waves == 0 ? "few tiles: two CTAs share the K of each"
                               : "two CTAs share the K of each tile of the last wave"}});
  }

  double read_again(const Tile& tile, int64_t rows, int64_t columns, const Walk& walk) const {
    if (walk.segments > 1) return 0;
    const double k_bytes = 2.0 * static_cast<double>(p_.k);
    if (walk.stream_k && tile.cluster == 1) {
      const double a = k_bytes * static_cast<double>(p_.m);
      const double b = k_bytes * static_cast<double>(p_.n);
      return static_cast<double>(batch_) * kSharesAgain *
             ((a > kStaysBytes ? static_cast<double>(columns - 1) * a : 0) +
              (b > kStaysBytes ? static_cast<double>(rows - 1) * b : 0));
    }
    const auto of = [&](int64_t extent, int block, int64_t other) {
      const int64_t tiles = ceil_div<int64_t>(extent, block);
      const double bytes = k_bytes * static_cast<double>(other);
      if (tiles == 1 || tiles > kMaxAhead || bytes < kStaysBytes) return 0.0;
      return bytes * static_cast<double>(tiles * block - extent) / block;
    };
    return of(p_.m, kBlockM, p_.n) + of(p_.n, tile.block_n, p_.m);
  }

  double memory_rate(const Tile& tile) const {
    const auto rows = static_cast<double>(std::min<int64_t>(p_.m, kBlockM) +
                                          std::min<int64_t>(p_.n, tile.block_n));
    return std::min(memory_bytes_per_us_, kBytesPerUsInFlight * tile.stages * rows * kBlockK * 2);
  }

  double l2_us(int64_t rows, int64_t columns) const {
    return static_cast<double>(batch_) * static_cast<double>(k_tiles_) *
           (static_cast<double>(columns) * a_lines_ + static_cast<double>(rows) * b_lines_) /
           l2_lines_per_us_;
  }

  // Of those 128 bytes that a load takes of each row. One row in so many begins with a line.
  static double lines_of_row(int64_t stride) {
    return row_begins(stride).lines(kLinesOfSplitSectors, kLinesOfUnevenRow);
  }

  const GemmProblem& p_;
  bool swapped_, tma_store_, a_mn_, b_mn_, at_power_;
  int sm_count_;
  int64_t k_tiles_, batch_ = 1;
  double bytes_, a_lines_, b_lines_;
  double cycles_per_us_, memory_bytes_per_us_, l2_lines_per_us_;  // of this GPU
};

class Model {
 public:
  using Candidate = persistent::Candidate;

  Model(const Side& side, const Side* other) : side_(side), other_(other) {}

  template <typename Search>
  void candidates(Search& search) const {
    side_.candidates(search);
    if (other_ != nullptr) other_->candidates(search);
  }
  static Estimate estimate(const Candidate& c, double) { return c.side->estimate(c); }
  static Choice choice(const Candidate& c) { return c.side->choice(c); }

 private:
  const Side& side_;
  const Side* other_;  // swapped, where the kernel may
};

}  // namespace

std::optional<Scored<Choice>> select(const GemmProblem& p, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  const GemmProblem other = swapped(p);
  const Side side(p, device, false), other_side(other, device, true);
  const size_t first = choose::size_of(listing);
  auto best = choose::pick<Choice>(Model(side, &other_side), listing);
  if (takes_33_to_128_costs(p)) {
    const double factor = is_large_33_to_128(p) ? kLarge33To128 : k33To128;
    choose::adjust(&best, listing, first, [&](Choice&, Estimate& estimate) {
      estimate.us = k33To128Us + factor * estimate.us;
    });
  }
  return best;
}

std::optional<Scored<Choice>> select_shifted(const GemmProblem& p, const DeviceInfo& device,
                                             Listing<Choice>* listing) {
  const GemmProblem problem = by_residues(p);
  const Side side(problem, device, false);
  const size_t first = choose::size_of(listing);
  auto best = choose::pick<Choice>(Model(side, nullptr), listing);
  choose::adjust(&best, listing, first, [&](Choice& choice, Estimate& estimate) {
    std::get<Config>(choice.config).shifted = true;
    choice.workspace_bytes += head_bytes(p);
    estimate.us += kHeadsUs;
    estimate.parts.copies += kHeadsUs;
  });
  return best;
}

}  // namespace xgemm::cuda::gemm::sm90::persistent
