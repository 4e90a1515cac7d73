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
#include "cuda/gemm/sm90/together.h"

namespace xgemm::cuda::gemm::sm90::skinny {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// A roofline, in microseconds and cycles of an H200, cold L2; fitted with single-tile's and
// persistent's (benchmarks/fit_dense.py): docs/measurements/dense.md, "One roofline a kernel".
constexpr double kLaunchUs = 6.019;
// Until memory is read at its full rate, for products of so many bytes and more.
constexpr double kRampUs = 0.4125, kRampBytes = 15.6e6;
constexpr double kMemoryBytesPerUs = 4.481e6;
// Of the time for memory, more: of a wide operand that is read again and takes the place of what L2
// must write back; of one whose rows begin within a line; of the excess of the longest queue of
// tiles.
constexpr double kReadAgainLoss = 0.6969, kUnevenLoss = 0.1801, kQueueLoss = 0.1263;
// Lines of 128 bytes that L2 gives all SMs, and those of 128 bytes of a row that begins within one,
// or within a sector.
constexpr double kL2LinesPerUs = 181.2e3, kLinesOfUnevenRow = 2.662, kLinesOfSplitSectors = 2.112;
// Of a narrow operand across K, of which a line for each k holds little: up to 8 rows, up to 32,
// and up to 63.
constexpr double kLinesOfHalfSector = 3.404, kLinesOfNarrow = 1.317, kLinesOfPartOfBox = 3.744;
constexpr int64_t kHalfSector = 8, kNarrow = 32;
// Of a stage of K: at least, bytes that an SM takes in, columns of a wgmma.
constexpr double kStageCycles = 147.0, kLoadBytesPerCycle = 100.3, kLoadsOfSplitSectors = 2.479;
constexpr double kMinWgmmaCycles = 26.29, kCyclesPerUs = 2188;
constexpr double kElementStoreUsPerByte = 1.43e-7;  // of D where it takes no 16 bytes along W
// Of a tile, which nothing hides: sums over the cluster, and stores. Where more than two CTAs share
// K, few warps finish what all have multiplied.
constexpr double kTileUs = 0.08256, kTileUsPerColumn = 0.005817, kManySplitsUsPerColumn = 0.008233;
// Of a cluster that splits K in 1, 2, 4 and 8.
constexpr double kIn2Us = 0.5668, kIn4Us = 0.5507, kIn8Us = 0.8656;

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
        wide_begins_(begins_of(view_.wide)),
        narrow_begins_(begins_of(view_.narrow)) {
    const auto& gpu = choose::constants_of(device);
    memory_bytes_per_us_ = kMemoryBytesPerUs * gpu.dram_speed;
    l2_lines_per_us_ = kL2LinesPerUs * gpu.l2_speed;
    cycles_per_us_ = kCyclesPerUs * gpu.clock_speed;
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

  // Of a stage of K: lines that an operand's rows take, of L2 or into the SM.
  double lines_of(const Candidate& c, double of_split_sectors, double of_uneven_row) const {
    const Matrix& x = view_.narrow;
    // What is not along K comes in whole boxes.
    const double rows = x.k_major ? std::min<double>(c.columns, x.extent) : c.columns;
    return c.rows * wide_begins_.lines(of_split_sectors, of_uneven_row) +
           rows * narrow_lines(of_split_sectors, of_uneven_row);
  }
  double narrow_lines(double of_split_sectors, double of_uneven_row) const {
    const Matrix& x = view_.narrow;
    if (!x.k_major && x.extent <= kHalfSector) return kLinesOfHalfSector;
    if (!x.k_major && x.extent <= kNarrow) return kLinesOfNarrow;
    if (!x.k_major && x.extent < kSwizzleElements) return kLinesOfPartOfBox;
    return narrow_begins_.lines(of_split_sectors, of_uneven_row);
  }
  static RowBegins begins_of(const Matrix& x) {
    return row_begins(x.k_major ? x.stride : x.k_stride);
  }

  const GemmProblem& problem_;
  const DeviceInfo& device_;
  View view_;
  RowBegins wide_begins_, narrow_begins_;
  double memory_bytes_per_us_, l2_lines_per_us_, cycles_per_us_;  // on this GPU
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
  const double memory_us = memory / memory_bytes_per_us_ *
                           (narrow > c.columns ? 1 + kReadAgainLoss : 1) *
                           (1 + kUnevenLoss * (1 - wide_begins_.with_line)) *
                           (1 + kQueueLoss * (waves * clusters / tiles - 1));
  const double k_steps = std::ceil(k / kSwizzleElements);
  const double k_steps_of_cta = std::ceil(k_steps / c.splitting.splits);
  const double l2_us =
      tiles * k_steps * lines_of(c, kLinesOfSplitSectors, kLinesOfUnevenRow) / l2_lines_per_us_;
  const int warpgroups = warpgroups_of(c.rows);
  const double load =
      lines_of(c, kLoadsOfSplitSectors, 1) * 2 * kSwizzleElements / kLoadBytesPerCycle;
  const double multiply = 4 * warpgroups * std::max(c.columns / 2.0, kMinWgmmaCycles);
  const double mma_us =
      waves * k_steps_of_cta * together(multiply, load, kStageCycles) / cycles_per_us_;
  const double us_per_column = c.splitting.splits > 2 ? kManySplitsUsPerColumn : kTileUsPerColumn;
  const double ramp_us = kRampUs * std::min(1.0, memory / kRampBytes);
  const double stores_us = vector_store_ ? 0 : 2 * batch * wide * narrow * kElementStoreUsPerByte;
  const double of_splitting[] = {0, kIn2Us, kIn4Us, kIn8Us};
  const double splitting_us =
      of_splitting[std::bit_width(static_cast<unsigned>(c.splitting.splits)) - 1];
  const double tiles_us = waves * (kTileUs + us_per_column * c.columns * warpgroups);
  const double overlapped = std::sqrt(memory_us * memory_us + l2_us * l2_us + mma_us * mma_us);
  return {.us = kLaunchUs + ramp_us + overlapped + stores_us + splitting_us + tiles_us,
          .parts = {.launch = kLaunchUs,
                    .first_bytes = ramp_us,
                    .dram = memory_us,
                    .l2 = l2_us,
                    .intake = waves * k_steps_of_cta * load / cycles_per_us_,
                    .mma = mma_us,
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
