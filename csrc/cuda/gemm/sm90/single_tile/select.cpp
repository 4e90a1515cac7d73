#include "cuda/gemm/sm90/single_tile/select.h"

#include <algorithm>
#include <cmath>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/make_params.h"
#include "cuda/gemm/sm90/row_begins.h"
#include "cuda/gemm/sm90/single_tile/tile.h"
#include "cuda/gemm/sm90/swap.h"
#include "cuda/gemm/sm90/tma_fit.h"
#include "cuda/gemm/sm90/together.h"

namespace xgemm::cuda::gemm::sm90::single_tile {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// A roofline of one wave after another, in microseconds and cycles of an H200, cold L2. The
// constants of this file, of persistent's and of skinny's are fitted together
// (benchmarks/fit_dense.py): docs/measurements/dense.md, "One roofline a kernel".
constexpr double kLaunchUs = 5.443;
// Until memory is read at its full rate, for products of so many bytes and more.
constexpr double kRampUs = 0.9609, kRampBytes = 4.3e6;
constexpr double kCyclesPerUs = 1710;  // at which tensor cores work
// A product that takes so long and longer holds a lower clock by this share.
constexpr double kHeatLoss = 0.2032, kHotUs = 300;
constexpr double kMemoryBytesPerUs = 3.946e6;
// Lines of 128 bytes that L2 gives all SMs. For each 128 bytes of a row that begins within a line
// it gives more than one, within a sector more again.
constexpr double kL2LinesPerUs = 178.2e3;
constexpr double kLinesOfUnevenRow = 2.285, kLinesOfSplitSectors = 3.441;
// Of an operand across K that has no more than a line for each k: all SMs ask for that line at the
// same time.
constexpr double kLinesOfOneLine = 10;
// Of what a cluster shares, the part that L2 gives each CTA anew.
constexpr double kGivenAgain = 0.2479;
// A stage of K: at least, bytes that an SM takes in, boxes across K, and those who share wait.
constexpr double kStageCycles = 126.5, kLoadBytesPerCycle = 112.9, kBoxCycles = 20.37;
constexpr double kLoadsOfSplitSectors = 1.49, kSharedLoss = 0.02829;
constexpr double kTwoWarpgroups = 0.06822;  // loss of two that share the k of 64 rows
constexpr double kSumsUs = 0.2496;          // of their sums, for 64 columns
// Of a wave after the first: where an SM has room for two CTAs, and where it has not.
constexpr double kWaveWithRoomUs = 0.7198, kWaveUs = 3.428;
constexpr double kStoreBytesPerUs = 44.15e3;  // of a tile of D
// Of that time, where D is computed from its other side.
constexpr double kTransposedStore = 0.5878;
constexpr double kClusterUs = 0.3876;  // until a cluster has met
// Of the second launch that adds parts of K, and bytes of sums that it and the first one move.
constexpr double kPartsUs = 2.254, kPartsBytesPerUs = 6.077e6;
constexpr int64_t kMinChunksOfPart = 6;
constexpr int64_t kMinSideOfParts = 65;  // of D; below it the skinny kernel is ahead
// Clusters find room on so many of 11 SMs.
constexpr int kSmsOfClusters = 10, kSmsInAll = 11;
constexpr int64_t kMaxWaves = 6, kMaxGrid = 65535;
constexpr int kMaxSmemBytes = 227 * 1024;

class Side;

// What a kernel is compiled for, the tile it is to take, CTAs that share an operand, parts of K.
struct Candidate {
  const Side* side;
  const Shape* shape;
  int tile_m, tile_n;
  int64_t rows, columns;  // of tiles
  int cluster = 1, parts = 1;
  Clusters clusters{1, 1};
  int64_t ctas = 0;
  Raster raster{};
};

// The problem or, `is_swapped`, the same from the other side.
class Side {
 public:
  // `sums_bytes`: of one part of K.
  Side(const GemmProblem& p, const DeviceInfo& device, bool is_swapped, int64_t sums_bytes)
      : p_(p),
        swapped_(is_swapped),
        vector_store_(d_fits_tma(p) || d_fits_tma(swapped(p))),
        a_mn_(!a_k_major(p)),
        b_mn_(!b_k_major(p)),
        sm_count_(device.sm_count),
        room_(std::max(1, device.sm_count / kSmsInAll * kSmsOfClusters)),
        chunks_(ceil_div<int64_t>(p.k, kChunkK)),
        sums_bytes_(sums_bytes) {
    const auto& gpu = choose::constants_of(device);
    cycles_per_us_ = kCyclesPerUs * gpu.clock_speed;
    store_bytes_per_us_ = kStoreBytesPerUs * gpu.clock_speed;
    l2_speed_ = gpu.l2_speed;
    for (int i = 0; i < p.batch_dims; ++i) batch_ *= p.batch[i].size;
    bytes_ =
        2.0 * static_cast<double>(batch_) * static_cast<double>(p.m * p.k + p.n * p.k + p.m * p.n);
    memory_us_ = bytes_ / (kMemoryBytesPerUs * gpu.dram_speed);
    a_begins_ = row_begins(a_mn_ ? p.a.col_stride : p.a.row_stride);
    b_begins_ = row_begins(b_mn_ ? p.b.row_stride : p.b.col_stride);
  }

  template <typename Search>
  void candidates(Search& search) const {
    if (batch_ > kMaxGrid) return;
    for (const Shape& shape : kShapes) {
      if (!may_suit(shape)) continue;
      const int64_t rows = ceil_div<int64_t>(p_.m, shape.block_m);
      const int64_t columns = ceil_div<int64_t>(p_.n, shape.block_n);
      if (rows >= kMaxGrid || columns >= kMaxGrid) continue;
      const int64_t tiles = rows * columns * batch_;
      if (tiles > kMaxWaves * sm_count_ || least_us(shape, tiles) >= search.limit()) continue;
      Candidate c{.side = this,
                  .shape = &shape,
                  .tile_m = cut(p_.m, rows, a_mn_, shape.block_m),
                  .tile_n = cut(p_.n, columns, b_mn_, shape.block_n),
                  .rows = rows,
                  .columns = columns};
      // A smaller one's, which is considered, too.
      if (&shape_of(c.tile_m, c.tile_n, k_major()) != &shape) continue;
      for (const int cluster : {1, kCluster}) {
        c.cluster = cluster;
        consider(c, search);
      }
      c.cluster = 1;
      c.parts = most_parts(tiles);
      for (int i = 0; c.parts > 1 && i < 2; --c.parts, ++i) consider(c, search);
    }
  }

  Choice choice(const Candidate& c) const {
    return {.config = Config{.shape = c.shape,
                             .tile_m = c.tile_m,
                             .tile_n = c.tile_n,
                             .clusters = c.clusters,
                             .raster = c.raster,
                             .splits = c.parts,
                             .ctas = static_cast<int>(c.ctas),
                             .swapped = swapped_},
            .workspace_bytes = c.parts > 1 ? c.parts * sums_bytes_ : 0,
            .reason = "a CTA for each tile, soon started and soon stored"};
  }

  Estimate estimate(const Candidate& c) const {
    const Shape& shape = *c.shape;
    const bool shares = c.cluster > 1, two = sharers_of(shape.block_m) > 1;
    const int64_t waves = ceil_div(c.ctas, shares ? room_ : sm_count_);
    const auto later_waves = static_cast<double>(waves - 1);
    const int64_t stages = ceil_div<int64_t>(chunks_, c.parts);  // of a CTA
    // Rows that it takes in; what is not along K comes in whole boxes.
    const int a_rows = a_mn_ ? shape.block_m : std::min<int>(c.tile_m, p_.m);
    const int b_rows = b_mn_ ? round_up(c.tile_n, kChunkK) : std::min<int>(c.tile_n, p_.n);
    const int boxes = ((a_mn_ ? a_rows : 0) + (b_mn_ ? b_rows : 0)) / kChunkK;
    // wgmma takes half as many cycles as columns for each of its 64 rows and 16 k.
    const double multiply = shape.block_m * shape.block_n / 32.0 * (two ? 1 + kTwoWarpgroups : 1);
    const double load = (lines(a_mn_, p_.m, a_rows, a_begins_, kLoadsOfSplitSectors, 1) +
                         lines(b_mn_, p_.n, b_rows, b_begins_, kLoadsOfSplitSectors, 1)) *
                        kLineBytes / kLoadBytesPerCycle;
    const double cycles = (together(multiply, load, kStageCycles) + kBoxCycles * boxes) *
                          (shares ? 1 + kSharedLoss : 1);
    const double cold_us = static_cast<double>(waves * stages) * cycles / cycles_per_us_;
    const double mma_us = cold_us * (1 + kHeatLoss * std::min(1.0, cold_us / kHotUs));
    const double from_l2 =
        lines(a_mn_, p_.m, a_rows, a_begins_, kLinesOfSplitSectors, kLinesOfUnevenRow) *
            given(c.clusters.along_n) +
        lines(b_mn_, p_.n, b_rows, b_begins_, kLinesOfSplitSectors, kLinesOfUnevenRow) *
            given(c.clusters.along_m);
    const double l2_us = static_cast<double>(c.rows * c.columns * batch_ * chunks_) * from_l2 /
                         (kL2LinesPerUs * l2_speed_);
    const double overlapped = together(mma_us, l2_us, memory_us_);
    const int64_t smem_bytes = std::min<int64_t>(stages, shape.stages) *
                               (shape.block_m + std::max(b_rows, shape.block_n)) *
                               static_cast<int>(kLineBytes);
    const bool has_room = 2 * smem_bytes <= kMaxSmemBytes;
    const double waves_us = later_waves * (has_room ? kWaveWithRoomUs : kWaveUs);
    // (Parts of K leave sums instead.)
    const double stored = c.parts > 1 ? 0 : 2.0 * c.tile_m * c.tile_n;
    const double store_us = static_cast<double>(waves) * stored / store_bytes_per_us_ *
                            (swapped_ ? kTransposedStore : 1);
    const double moved = 2.0 * c.parts * static_cast<double>(sums_bytes_);
    const double parts_us = c.parts > 1 ? kPartsUs + moved / (kPartsBytesPerUs * l2_speed_) : 0;
    const double sums_us = two ? kSumsUs * shape.block_n / 64 : 0;
    const double ramp_us = kRampUs * std::min(1.0, bytes_ / kRampBytes);
    const double cluster_us = shares ? kClusterUs : 0;
    return {.us = kLaunchUs + ramp_us + cluster_us + overlapped + waves_us + store_us + parts_us +
                  sums_us,
            .parts = {.launch = kLaunchUs,
                      .first_bytes = ramp_us + cluster_us,
                      .dram = memory_us_,
                      .l2 = l2_us,
                      .intake = static_cast<double>(waves * stages) * load / cycles_per_us_,
                      .mma = mma_us,
                      .exchange = parts_us,
                      .epilogue = waves_us + store_us + sums_us}};
  }

 private:
  static constexpr double kLineBytes = 2.0 * kChunkK;

  bool k_major() const { return !a_mn_ && !b_mn_; }

  bool may_suit(const Shape& shape) const {
    if (!shape.compiled_for(a_mn_, b_mn_)) return false;
    // An activation goes through many sums slowly, and so do stores of single elements.
    return !shape.wide() || (p_.activation == Activation::kNone && vector_store_);
  }

  // The tiles are as few as can be, all of one size. Boxes of an operand across K are not cut.
  static int cut(int64_t extent, int64_t tiles, bool mn, int block) {
    return mn ? block : static_cast<int>(round_up<int64_t>(ceil_div(extent, tiles), 8));
  }

  // Of a stage of K, that an operand's rows take.
  static double lines(bool mn, int64_t extent, int rows, const RowBegins& begins,
                      double of_split_sectors, double of_uneven_row) {
    if (mn && 2 * extent <= kLineBytes) return kChunkK * kLinesOfOneLine;
    return rows * begins.lines(of_split_sectors, of_uneven_row);
  }

  // Of an operand that so many CTAs share, what L2 gives each.
  static double given(int sharers) { return kGivenAgain + (1 - kGivenAgain) / sharers; }

  // What no cluster takes less than: the tensor cores are busy all the time.
  double least_us(const Shape& shape, int64_t tiles) const {
    const int64_t parts = std::max(1, most_parts(tiles));
    const auto parts_of_sm = static_cast<double>(ceil_div(tiles * parts, sm_count_));
    const double stages = parts_of_sm / static_cast<double>(parts) * static_cast<double>(chunks_);
    const double us = stages * shape.block_m * shape.block_n / 32 / cycles_per_us_;
    return kLaunchUs + std::sqrt(std::sqrt(fourth(us) + fourth(memory_us_)));
  }

  // Of K, so that all CTAs are one wave.
  int most_parts(int64_t tiles) const {
    const bool takes_parts = k_major() && p_.batch_dims == 0 && vector_store_ &&
                             p_.activation == Activation::kNone &&
                             std::min(p_.m, p_.n) >= kMinSideOfParts;
    if (!takes_parts) return 1;
    return static_cast<int>(
        std::min({sm_count_ / tiles, chunks_ / kMinChunksOfPart, int64_t{kMaxParts}}));
  }

  template <typename Search>
  void consider(Candidate c, Search& search) const {
    c.clusters = clusters_of(c.rows, c.columns, c.cluster);
    if (c.tile_m % c.clusters.along_n != 0 || c.tile_n % c.clusters.along_m != 0) return;
    c.ctas = round_up<int64_t>(c.rows, c.clusters.along_m) *
             round_up<int64_t>(c.columns, c.clusters.along_n) * batch_ * c.parts;
    if (c.cluster * c.parts * batch_ == 1 && c.ctas <= sm_count_) {
      c.raster = raster_of_wave(p_.m < p_.n ? c.rows : c.columns, chunks_);
    }
    search.consider(c);
  }

  const GemmProblem& p_;
  bool swapped_, vector_store_, a_mn_, b_mn_;
  int64_t sm_count_, room_;  // SMs, and those that clusters find room on
  int64_t chunks_, batch_ = 1;
  int64_t sums_bytes_;
  RowBegins a_begins_, b_begins_;
  double bytes_, memory_us_, cycles_per_us_, store_bytes_per_us_, l2_speed_;  // on this GPU
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
  const GemmProblem other = swapped(p);
  // As D lies, rows of whole quads.
  const int64_t sums =
      is_column_major(p) ? p.n * round_up<int64_t>(p.m, 4) : p.m * round_up<int64_t>(p.n, 4);
  const Side side(p, device, false, 4 * sums), other_side(other, device, true, 4 * sums);
  return choose::pick<Choice>(Model(side, other_side), listing);
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
