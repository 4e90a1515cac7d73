#include "cuda/gemm/sm90/persistent/select.h"

#include <algorithm>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/sm90/persistent/shifted.h"
#include "cuda/gemm/sm90/persistent/tiles.h"
#include "cuda/gemm/sm90/row_begins.h"
#include "cuda/gemm/sm90/swap.h"
#include "cuda/gemm/sm90/tma_fit.h"
#include "cuda/gemm/sm90/together.h"

namespace xgemm::cuda::gemm::sm90::persistent {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

struct Tile {
  int block_n, stages, cluster;
};
#define XGEMM_SM90_TILE(BLOCK_N, STAGES) {BLOCK_N, STAGES, 1}, {BLOCK_N, STAGES, kPair},
constexpr Tile kTiles[] = {XGEMM_SM90_TILES(XGEMM_SM90_TILE)};
#undef XGEMM_SM90_TILE

// A roofline of one wave after another, in microseconds and cycles of an H200, cold L2; fitted with
// single-tile's and skinny's (benchmarks/fit_dense.py): docs/measurements/dense.md, "One roofline a
// kernel".
constexpr double kLaunchUs = 7.038;
// Until memory is read at its full rate, for products of so many bytes and more.
constexpr double kRampUs = 1.519, kRampBytes = 32e6;
constexpr double kCyclesPerUs = 1952;  // at which tensor cores work
// A product that takes so long and longer holds a lower clock by this share: less where pairs read
// an operand once for both.
constexpr double kHeatLoss = 0.3209, kPairHeatLoss = 0.275, kHotUs = 300;
constexpr double kMemoryBytesPerUs = 3.699e6;
// Lines of 128 bytes that L2 gives all SMs; more than one for 128 bytes of a row that begins within
// a sector.
constexpr double kL2LinesPerUs = 112e3, kLinesOfSplitSectors = 2.974;
// Of a stage of K: what waiting adds to its products, alone and in a pair whose CTAs wait for each
// other; bytes that an SM takes in, more of rows that begin within a line; boxes across K.
constexpr double kAloneLoss = 0.0129, kPairLoss = 0.04613, kPairCycles = 72.51;
constexpr double kLoadBytesPerCycle = 66.5;
constexpr double kLoadsOfUnevenRow = 1.374, kLoadsOfSplitSectors = 1.359;
constexpr double kBoxCycles = 1.17;
// Of a tile after the first, and for each of its columns; of a last tile's stores, for each column,
// by vectors, and more by single elements.
constexpr double kTileUs = 0.416, kTileUsPerColumn = 0.002036;
constexpr double kStoreUsPerColumn = 0.008371, kElementStoreUsPerColumn = 0.0152;
// Of the halves of K that two CTAs exchange, and for each column of them.
constexpr double kHalvesUs = 0.8094, kHalvesUsPerColumn = 0.002181;
constexpr int kMinStepsToSplit = 8;
constexpr double kHeadsUs = 3;  // of the copy of a shifted A's heads

// A way to go over the tiles.
struct Walk {
  int64_t clusters;
  int64_t steps, segments;  // of the busiest CTA: k-tiles, and tiles or halves of one
  int splits = 1;
  double us = 0;  // for the sums of halves of K
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
    const auto& gpu = choose::constants_of(device);
    bytes_ = 2 * (m * k * static_cast<double>(a_matrices) +
                  n * k * static_cast<double>(b_matrices) + m * n * static_cast<double>(batch_));
    memory_us_ = bytes_ / (kMemoryBytesPerUs * gpu.dram_speed);
    cycles_per_us_ = kCyclesPerUs * gpu.clock_speed;
    l2_lines_per_us_ = kL2LinesPerUs * gpu.l2_speed;
    a_begins_ = row_begins(a_mn_ ? p.a.col_stride : p.a.row_stride);
    b_begins_ = row_begins(b_mn_ ? p.b.row_stride : p.b.col_stride);
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
      if (tile.cluster == kPair) of_halves(tile, columns, most, search);
    }
  }

  Choice choice(const Candidate& c) const {
    return {.config = Config{.block_n = c.tile.block_n,
                             .stages = c.tile.stages,
                             .cluster = c.tile.cluster,
                             .splits = c.walk.splits,
                             .ctas = static_cast<int>(c.walk.clusters) * c.tile.cluster,
                             .shifted = false,
                             .swapped = swapped_,
                             .tma_store = tma_store_},
            .reason = c.walk.reason};
  }

  Estimate estimate(const Candidate& c) const {
    const auto& [side, tile, rows, columns, walk] = c;
    const double cold_us =
        static_cast<double>(walk.steps) * cycles_of(tile, walk.splits) / cycles_per_us_;
    const double heat = tile.cluster == kPair ? kPairHeatLoss : kHeatLoss;
    const double mma_us = cold_us * (1 + heat * std::min(1.0, cold_us / kHotUs));
    const double lines_us = l2_us(rows, columns);
    const double ramp_us = kRampUs * std::min(1.0, bytes_ / kRampBytes);
    const double tiles_us =
        static_cast<double>(walk.segments - 1) * (kTileUs + kTileUsPerColumn * tile.block_n);
    const double elements_us =
        tma_store_ ? 0 : kElementStoreUsPerColumn * static_cast<double>(walk.segments);
    const double store_us = (kStoreUsPerColumn + elements_us) * tile.block_n;
    return {.us = kLaunchUs + ramp_us + together(mma_us, lines_us, memory_us_) + walk.us +
                  tiles_us + store_us,
            .parts = {.launch = kLaunchUs,
                      .first_bytes = ramp_us,
                      .dram = memory_us_,
                      .l2 = lines_us,
                      .mma = mma_us,
                      .exchange = walk.us,
                      .epilogue = tiles_us + store_us}};
  }

 private:
  static constexpr int64_t kMaxTiles = int64_t{1} << 28;

  // Of a stage of K: the products', or what the SM takes in, and boxes across K.
  double cycles_of(const Tile& tile, int splits) const {
    const bool pair = tile.cluster == kPair;
    const double products = products_of(tile) * (1 + (pair ? kPairLoss : kAloneLoss)) +
                            (pair && splits == 1 ? kPairCycles : 0);
    const double lines =
        static_cast<double>(std::min<int64_t>(p_.m, kBlockM)) * loads_of(a_begins_) +
        static_cast<double>(std::min<int64_t>(p_.n, tile.block_n)) * loads_of(b_begins_);
    const int boxes = (a_mn_ ? kBlockM / kSwizzleElements : 0) +
                      (b_mn_ ? ceil_div(tile.block_n, kSwizzleElements) : 0);
    return std::max(products, lines * kLineBytes / kLoadBytesPerCycle) + kBoxCycles * boxes;
  }

  // m64nNk16 takes N / 2 cycles, of which a tile has 2 x 4 for each k-tile.
  static double products_of(const Tile& tile) { return 4.0 * tile.block_n; }
  static double loads_of(const RowBegins& begins) {
    return begins.lines(kLoadsOfSplitSectors, kLoadsOfUnevenRow);
  }

  // What no walk takes less than: all SMs multiply all the time.
  double least_us(const Tile& tile, int64_t columns) const {
    const int64_t tiles = ceil_div<int64_t>(p_.m, kBlockM) * columns * batch_;
    const double steps = static_cast<double>(tiles * k_tiles_) / sm_count_;
    return kLaunchUs + steps * products_of(tile) / cycles_per_us_;
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

  // The last wave by halves of K, where it has a tile for every second SM or fewer; before it CTAs
  // walk alone.
  template <typename Search>
  void of_halves(const Tile& tile, int64_t columns, int64_t most, Search& search) const {
    const int64_t rows = ceil_div<int64_t>(p_.m, kBlockM), tiles = rows * columns * batch_;
    const int64_t waves = tiles / (kPair * most), rest = tiles % (kPair * most);
    if (rest == 0 || rest > most || k_tiles_ < kMinStepsToSplit) return;
    // As few clusters as need the same number of waves.
    const int64_t least = ceil_div(tiles, kPair * waves + 1);
    const int64_t steps = waves * k_tiles_ + (k_tiles_ + 1) / 2;
    search.consider(
        {this,
         tile,
         rows,
         columns,
         {.clusters = kPair * waves * least <= tiles ? least : most,
          .steps = steps,
          .segments = waves + 1,
          .splits = 2,
          .us = kHalvesUs + kHalvesUsPerColumn * tile.block_n,
          .reason = waves == 0 ? "few tiles: two CTAs share the K of each"
                               : "two CTAs share the K of each tile of the last wave"}});
  }

  double l2_us(int64_t rows, int64_t columns) const {
    const auto a_rows = static_cast<double>(columns * p_.m);
    const auto b_rows = static_cast<double>(rows * p_.n);
    return static_cast<double>(batch_ * k_tiles_) *
           (a_rows * a_begins_.lines(kLinesOfSplitSectors, 1) +
            b_rows * b_begins_.lines(kLinesOfSplitSectors, 1)) /
           l2_lines_per_us_;
  }

  static constexpr double kLineBytes = 2.0 * kBlockK;

  const GemmProblem& p_;
  bool swapped_, tma_store_, a_mn_, b_mn_;
  int sm_count_;
  int64_t k_tiles_, batch_ = 1;
  RowBegins a_begins_, b_begins_;
  double bytes_, memory_us_, cycles_per_us_, l2_lines_per_us_;  // on this GPU
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
  return choose::pick<Choice>(Model(side, &other_side), listing);
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
