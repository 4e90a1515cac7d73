#include "cuda/gemm/sm90/single_tile/select_k_major.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/sm90/row_begins.h"
#include "cuda/gemm/sm90/single_tile/tile.h"
#include "cuda/gemm/sm90/swap.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90::single_tile {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// A roofline of one wave after another. Fitted to measurements on an H200 from a cold L2, so that
// the choice takes the least time: 800 random layers of 129 to 2047 rows, each in 44 candidates; in
// the measure of persistent's estimate. Of 918 others it takes 1.1 % longer than the best of all
// kernels.
constexpr double kLaunchUs = 4.854;
constexpr double kCyclesPerUs = 1739;  // at which tensor cores are busy all the time
// Above what the memory gives: part of the bytes' time lies under the launch and the first stages.
constexpr double kMemoryBytesPerUs = 11.26e6;
constexpr double kL2BytesPerUs = 29.38e6;     // for all SMs
constexpr double kMostL2BytesPerUs = 14.4e6;  // where a product asks for nothing else
constexpr double kWaveUs = 4.135;             // of a wave after the first one
constexpr double kStoreBytesPerCycle = 15.2;  // of a tile of D, that an SM writes to L2
// An SM takes in 64 bytes a cycle. A stage whose bytes take longer than its products waits for a
// share of the difference; longer where CTAs wait for one another.
constexpr double kLoadBytesPerCycle = 59.9;
constexpr double kHiddenLoad = 1.073, kLoadLoss = 0.2781;
constexpr double kSharedLoadLoss = 0.895, kHalvesLoadLoss = 0.2175;  // of kLoadLoss, more
constexpr double kSharedLoss = 0.06911;    // of a stage that a cluster shares
constexpr double kTwoWarpgroups = 0.1757;  // loss of two that share the k of 64 rows
constexpr double kClusterUs = 1.692;       // until a cluster has met
constexpr double kFourUs = 0.1411;         // more, where four share an operand
constexpr double kHalvesUs = 0.6779;       // of the sums of 16384 elements that two CTAs add up
// Of the second launch that adds parts of K, and bytes of sums that it and the first one move.
constexpr double kPartsUs = 2.292, kPartsBytesPerUs = 3.686e6;
constexpr int64_t kMinChunksOfPart = 6;
// CTAs that share an operand, and parts of K. Two CTAs that share an operand were never ahead of
// two that do not: 1.02 of the time on average, 1.27 where they fill the GPU. Halves of K of which
// no operand is shared took 1.1 of the time of those that share one.
struct Cluster {
  int sharers, splits;
};
constexpr Cluster kClusters[] = {{1, 1}, {4, 1}, {2, 2}, {4, 2}};
// Clusters of more than two find room on so many of 11 SMs.
constexpr int kSmsOfLargeClusters = 10, kSmsInAll = 11;
constexpr int64_t kMaxWaves = 6, kMaxGrid = 65535;

class Side;

struct KMajorCandidate {
  const Side* side;
  const Shape* shape;
  int tile_m, tile_n, cluster, splits;
  int64_t rows, columns;  // of tiles
  Clusters clusters{};
  int64_t ctas = 0;
};

// The problem or, `is_swapped`, the same from the other side.
class Side {
 public:
  Side(const GemmProblem& p, const DeviceInfo& device, bool is_swapped)
      : p_(p),
        swapped_(is_swapped),
        sm_count_(device.sm_count),
        room_(std::max(1, device.sm_count / kSmsInAll * kSmsOfLargeClusters)),
        chunks_(ceil_div<int64_t>(p.k, kChunkK)) {
    const double bytes = 2.0 * static_cast<double>(p.m * p.k + p.n * p.k + p.m * p.n);
    const auto& gpu = choose::constants_of(device);
    cycles_per_us_ = kCyclesPerUs * gpu.clock_speed;
    l2_bytes_per_us_ = kL2BytesPerUs * gpu.l2_speed;
    memory_us_ = bytes / (kMemoryBytesPerUs * gpu.dram_speed);
    l2_speed_ = gpu.l2_speed;
    // As D lies, rows of whole quads.
    const bool across = std::abs(p.d_row_stride) < std::abs(p.d_col_stride);
    sums_bytes_ = (across ? p.n * round_up<int64_t>(p.m, 4) : p.m * round_up<int64_t>(p.n, 4)) * 4;
  }

  template <typename Search>
  void candidates(Search& search) const {
    for (const Shape& shape : kShapes) {
      // As few tiles as can be, all of one size.
      const int64_t rows = ceil_div<int64_t>(p_.m, shape.block_m);
      const int64_t columns = ceil_div<int64_t>(p_.n, shape.block_n);
      if (rows >= kMaxGrid || columns >= kMaxGrid) continue;
      if (rows * columns > kMaxWaves * sm_count_) continue;
      if (least_us(shape, rows * columns) >= search.limit()) continue;
      const int tile_m = cut(p_.m, rows), tile_n = cut(p_.n, columns);
      if (&shape_of(tile_m, tile_n, true) != &shape) continue;
      const int most = most_parts(rows * columns);
      const bool has_halves =
          takes_halves(shape.block_m, shape.block_n) && halves_fill(chunks_, shape.stages);
      for (const Cluster& cluster : kClusters) {
        if (cluster.splits > 1 && !has_halves) continue;
        consider({.side = this,
                  .shape = &shape,
                  .tile_m = tile_m,
                  .tile_n = tile_n,
                  .cluster = cluster.sharers,
                  .splits = cluster.splits,
                  .rows = rows,
                  .columns = columns},
                 search);
      }
      for (int parts = most, i = 0; parts > 1 && i < 2; --parts, ++i) {
        if (are_halves(shape, parts)) continue;
        consider({.side = this,
                  .shape = &shape,
                  .tile_m = tile_m,
                  .tile_n = tile_n,
                  .cluster = 1,
                  .splits = parts,
                  .rows = rows,
                  .columns = columns},
                 search);
      }
    }
  }

  Choice choice(const KMajorCandidate& c) const {
    return {.config = Config{.shape = c.shape,
                             .tile_m = c.tile_m,
                             .tile_n = c.tile_n,
                             .clusters = c.clusters,
                             .splits = c.splits,
                             .ctas = static_cast<int>(c.ctas),
                             .swapped = swapped_},
            .workspace_bytes = has_parts(c) ? c.splits * sums_bytes_ : 0,
            .reason = "tiles that fill whole waves, one for each CTA"};
  }

  Estimate estimate(const KMajorCandidate& c) const {
    constexpr double kLineBytes = 2.0 * kChunkK;
    const Shape& shape = *c.shape;
    const bool parts = has_parts(c);
    const int64_t room = !parts && c.cluster * c.splits > 2 ? room_ : sm_count_;
    const int64_t waves = ceil_div(c.ctas, room);
    // Of K, that the busiest SM multiplies.
    const auto stages = static_cast<double>(waves * ceil_div<int64_t>(chunks_, c.splits));
    // wgmma takes half as many cycles as columns for each of its 64 rows and 16 k.
    double cycles = shape.block_m * shape.block_n / 32.0;
    if (sharers_of(shape.block_m) > 1) cycles *= 1 + kTwoWarpgroups;
    const bool shares = c.cluster > 1, halves = c.splits > 1 && !parts;
    const double load = (c.tile_m + c.tile_n) * kLineBytes / kLoadBytesPerCycle;
    const double loss =
        kLoadLoss * (1 + (shares ? kSharedLoadLoss : 0) + (halves ? kHalvesLoadLoss : 0));
    cycles += loss * std::max(0.0, load - kHiddenLoad * cycles);
    if (shares) cycles *= 1 + kSharedLoss;
    const double multiply_us = stages * cycles / cycles_per_us_;
    const double from_l2 = static_cast<double>(c.tile_m) / c.clusters.along_n +
                           static_cast<double>(c.tile_n) / c.clusters.along_m;
    const double l2_us = static_cast<double>(c.rows * c.columns) * from_l2 *
                         static_cast<double>(chunks_) * kLineBytes / l2_bytes_per_us_;
    const double overlapped =
        std::max(std::sqrt(multiply_us * multiply_us + memory_us_ * memory_us_ + l2_us * l2_us),
                 l2_us * kL2BytesPerUs / kMostL2BytesPerUs);
    const double waves_us = kWaveUs * (static_cast<double>(waves) - 1);
    // (Parts of K leave sums instead, and each of two CTAs with halves of it stores half of a
    // tile.)
    const double stored = parts ? 0 : 2.0 * c.tile_m * c.tile_n / (halves ? 2 : 1);
    const double store_us =
        static_cast<double>(waves) * stored / kStoreBytesPerCycle / cycles_per_us_;
    const double cluster_us = shares ? kClusterUs : 0, four_us = c.cluster > 2 ? kFourUs : 0;
    const double moved = 2.0 * c.splits * static_cast<double>(sums_bytes_);
    const double sums_us = parts    ? kPartsUs + moved / (kPartsBytesPerUs * l2_speed_)
                           : halves ? kHalvesUs * shape.block_m * shape.block_n / 16384
                                    : 0;
    return {.us = kLaunchUs + overlapped + waves_us + cluster_us + four_us + sums_us + store_us,
            .parts = {.launch = kLaunchUs,
                      .first_bytes = cluster_us + four_us,
                      .dram = memory_us_,
                      .l2 = l2_us,
                      .intake = stages * load / cycles_per_us_,
                      .mma = multiply_us,
                      .exchange = sums_us,
                      .epilogue = waves_us + store_us}};
  }

 private:
  static int cut(int64_t extent, int64_t parts) {
    return static_cast<int>(round_up<int64_t>(ceil_div(extent, parts), 8));
  }

  // What no cluster takes less than: the tensor cores are busy all the time.
  double least_us(const Shape& shape, int64_t tiles) const {
    const int halves = takes_halves(shape.block_m, shape.block_n) ? 2 : 1;
    const int64_t parts = std::max(halves, most_parts(tiles));  // of K
    const auto parts_of_sm = static_cast<double>(ceil_div(tiles * parts, sm_count_));
    const double stages = parts_of_sm / static_cast<double>(parts) * static_cast<double>(chunks_);
    const double us = stages * shape.block_m * shape.block_n / 32 / cycles_per_us_;
    return kLaunchUs + std::sqrt(us * us + memory_us_ * memory_us_);
  }

  static bool has_parts(const KMajorCandidate& c) {
    return c.splits > 1 && !are_halves(*c.shape, c.splits);
  }

  // Of K, so that all CTAs are one wave.
  int most_parts(int64_t tiles) const {
    return static_cast<int>(
        std::min({sm_count_ / tiles, chunks_ / kMinChunksOfPart, int64_t{kMaxParts}}));
  }

  template <typename Search>
  void consider(KMajorCandidate c, Search& search) const {
    c.clusters = clusters_of(c.rows, c.columns, c.cluster);
    if (c.tile_m % c.clusters.along_n != 0 || c.tile_n % c.clusters.along_m != 0) return;
    c.ctas = round_up<int64_t>(c.rows, c.clusters.along_m) *
             round_up<int64_t>(c.columns, c.clusters.along_n) * c.splits;
    search.consider(c);
  }

  const GemmProblem& p_;
  bool swapped_;
  int64_t sm_count_, room_;  // SMs, and those that large clusters find room on
  int64_t chunks_;
  int64_t sums_bytes_;                                             // of one part of K
  double memory_us_, cycles_per_us_, l2_bytes_per_us_, l2_speed_;  // on this GPU
};

class KMajorModel {
 public:
  using Candidate = KMajorCandidate;

  KMajorModel(const Side& side, const Side& other) : side_(side), other_(other) {}

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

bool suits_k_major(const GemmProblem& p) {
  constexpr int64_t kMinRows = 129, kMaxRows = 2047, kMinOther = 1024;
  const int64_t rows = std::min(p.m, p.n), other = std::min(std::max(p.m, p.n), p.k);
  return rows >= kMinRows && rows <= kMaxRows && other >= kMinOther && p.batch_dims == 0 &&
         p.activation == Activation::kNone && a_k_major(p) && b_k_major(p) &&
         row_begins(p.a.row_stride).with_line == 1 && row_begins(p.b.col_stride).with_line == 1 &&
         (d_fits_tma(p) || d_fits_tma(swapped(p)));
}

std::optional<Scored<Choice>> select_k_major(const GemmProblem& p, const DeviceInfo& device,
                                             Listing<Choice>* listing) {
  const GemmProblem other = swapped(p);
  const Side side(p, device, false), other_side(other, device, true);
  return choose::pick<Choice>(KMajorModel(side, other_side), listing);
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
