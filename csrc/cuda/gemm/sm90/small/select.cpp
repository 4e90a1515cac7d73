#include "cuda/gemm/sm90/small/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/math.h"
#include "cuda/gemm/sm90/small/tile.h"
#include "cuda/gemm/sm90/swap.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90::small {
namespace {

// Fitted to an H200, cold L2, beside cuBLAS: 170 shapes (squares, layers of 136 to 1000 rows and
// log-uniform ones to 6000) in every tile and many cuts of it, 1820 times, 4.8 % off on average.
// The rates of memory and L2 are from 300 others, 2000 times: with them the choice among all
// kernels takes 1.6 % longer than the best, without 1.8 %.
constexpr double kLaunchUs = 4.419;  // and until a CTA's first operands are there
constexpr double kRampUs = 0.9196, kRampBytes = 4.332e6;  // more, for problems of this size on
constexpr double kMemoryBytesPerUs = 3.582e6;             // little is in flight
// Lines of 128 bytes: that one SM takes in, and that L2 gives; and those that a row which begins
// within a line takes for every 128 bytes.
constexpr double kSmLinesPerUs = 1956, kL2LinesPerUs = 1.228e5, kLinesOfUnevenRow = 1.994;
// For each k of few rows that lie across K: up to 8, and more.
constexpr double kLinesOfHalfSector = 10, kLinesOfFew = 1.5;
constexpr int64_t kHalfSector = 8;
// Of a stage of K, at least, and more where a cluster shares its operands; of each box of 64 rows
// of an operand that is not along K, alone and shared; and the clock, where the tensor cores are
// what takes time.
constexpr double kStageUs = 0.1014, kSharedStageUs = 0.149, kBoxUs = 0.001162, kSharedBoxUs = 0.03,
                 kCyclesPerUs = 1488;
// Of CTAs after the first of an SM: of several that it holds at once, and of one after another.
constexpr double kTurnUs = 0.2022, kWholeTurnUs = 1.921;
constexpr double kStoreUs = 3.684e-5;  // of each element of a tile
constexpr double kClusterUs = 0.2041;  // until the CTAs of a cluster have met
// Of two warpgroups that add their sums of more than 64 columns, less where K is long and rows
// begin with a line; and of the transpose's stores.
constexpr double kSumsUs = 0.35, kSumsOfLongUs = 0.1, kTransposeUs = 0.12;
constexpr int kLongChunks = 32;
constexpr int kMostSmemBytes = 227 * 1024;

double fourth(double x) { return x * x * x * x; }

// What a kernel is compiled for, the tile it is to take, and CTAs of a cluster.
struct Candidate {
  Shape shape;
  int tile_m, tile_n, cluster;
};

class Chooser {
 public:
  // `p`: the problem or, `is_swapped`, the same from the other side.
  Chooser(const Problem& p, const DeviceInfo& device, bool is_swapped, Config* best,
          double* best_us)
      : p_(p),
        swapped_(is_swapped),
        vector_store_(d_fits_tma(p) || d_fits_tma(swapped(p))),
        sm_count_(device.sm_count),
        a_mn_(!a_k_major(p)),
        b_mn_(!b_k_major(p)),
        chunks_(ceil_div<int64_t>(p.k, kChunkK)),
        best_(best),
        best_us_(best_us) {
    for (int i = 0; i < p.batch_dims; ++i) batch_ *= p.batch[i].size;
    bytes_ =
        2.0 * static_cast<double>(batch_) * static_cast<double>(p.m * p.k + p.n * p.k + p.m * p.n);
    a_lines_ = lines_of_row(a_mn_ ? p.a.col_stride : p.a.row_stride);
    b_lines_ = lines_of_row(b_mn_ ? p.b.row_stride : p.b.col_stride);
  }

  void choose() const {
    if (batch_ > kMostGrid) return;
    for (const Shape& shape : kShapes) {
      // Where both of its sides are long the other side of a product has nothing over it.
      if (swapped_ && shape.block_m > 64) continue;
      // An activation goes through many sums slowly, and so do stores of single elements.
      if (p_.activation != Activation::kNone && shape.wide()) continue;
      if (((a_mn_ && !b_mn_) || !vector_store_) && shape.wide()) continue;
      // Multicast pays for itself where all rows begin within a line alone (measured: up to 14 %,
      // in fours 19 %; elsewhere it costs 1 to 8 %).
      if (a_lines_ > 1 && b_lines_ > 1) {
        consider({shape, shape.block_m, shape.block_n, kLeastCluster});
        if (!a_mn_ && !b_mn_) {
          for (int cluster = kLeastCluster; cluster <= kMostCluster; cluster *= 2) {
            consider(even(shape, cluster));
          }
        }
      }
      if (is_few(a_mn_, p_.m) || is_few(b_mn_, p_.n)) {
        for (int cluster = kLeastCluster; cluster <= kMostCluster; cluster *= 2) {
          consider(even(shape, cluster));
        }
      }
      consider(even(shape, 1));
    }
  }

 private:
  static constexpr int64_t kMostGrid = 65535;  // of its rows, and of a batch
  static constexpr int64_t kMostTurns = 4;     // beyond them persistent CTAs are always ahead

  // Whether an operand across K fills little of its boxes: CTAs gain by sharing them.
  static bool is_few(bool mn, int64_t extent) { return mn && extent < kChunkK; }

  // As few tiles as can be, all of one size. Boxes of an operand that is not along K are not cut.
  Candidate even(const Shape& shape, int cluster) const {
    const auto cut = [](int64_t extent, int block) {
      const int64_t parts = ceil_div<int64_t>(extent, block);
      return static_cast<int>(round_up<int64_t>(ceil_div(extent, parts), 8));
    };
    return {shape, a_mn_ ? shape.block_m : cut(p_.m, shape.block_m),
            b_mn_ ? shape.block_n : cut(p_.n, shape.block_n), cluster};
  }

  void consider(const Candidate& c) const {
    // A smaller one's, which has been considered.
    const Shape& least = shape_of(c.tile_m, c.tile_n);
    if (least.block_m != c.shape.block_m || least.block_n != c.shape.block_n) return;
    const int64_t rows = ceil_div<int64_t>(p_.m, c.tile_m);
    const int64_t columns = ceil_div<int64_t>(p_.n, c.tile_n);
    const int64_t most = sm_count_ * kMostTurns;
    if (rows >= kMostGrid || rows > most || columns > most) return;
    const Clusters clusters = clusters_of(rows, columns, c.cluster);
    if (c.tile_m % clusters.along_n != 0 || c.tile_n % clusters.along_m != 0) return;
    const int64_t ctas = round_up<int64_t>(rows, clusters.along_m) *
                         round_up<int64_t>(columns, clusters.along_n) * batch_;
    // The SMs of a GPC need not divide by four: an H200 has room for 120 CTAs in fours.
    const int64_t room = c.cluster > 2 ? sm_count_ / 11 * 10 : sm_count_;
    if (ctas > (c.shape.wide() || c.cluster > 2 ? room : most)) return;
    const double us = estimate(c, clusters, ctas);
    if (us >= *best_us_) return;
    *best_us_ = us;
    *best_ = {.kernel = Kernel::kSm90Small,
              .block_m = c.tile_m,
              .block_n = c.tile_n,
              .stages = c.shape.stages,
              .cluster = c.cluster,
              .swapped = swapped_,
              .ctas = static_cast<int>(ctas),
              .reason = "few tiles: a CTA for each of them, soon started and soon stored"};
  }

  double estimate(const Candidate& c, const Clusters& clusters, int64_t ctas) const {
    const int block_m = c.shape.block_m, block_n = c.shape.block_n;
    const int loaded_n = b_mn_ ? round_up(block_n, kChunkK) : c.tile_n;
    const double a_lines = lines(a_mn_, p_.m, c.tile_m, a_lines_);
    const double b_lines = lines(b_mn_, p_.n, loaded_n, b_lines_);
    const int boxes = (a_mn_ ? block_m : 0) / kChunkK + (b_mn_ ? loaded_n : 0) / kChunkK;
    const auto turns = static_cast<double>(ceil_div<int64_t>(ctas, sm_count_));
    const auto chunks = static_cast<double>(chunks_);
    const double from_l2 = a_lines / clusters.along_n + b_lines / clusters.along_m;
    // What an SM asks for, and no less than what it gets.
    const double sm_lines = std::max(
        from_l2,
        static_cast<double>(std::min<int64_t>(p_.m, c.tile_m) + std::min<int64_t>(p_.n, loaded_n)));
    const int64_t stage_bytes = (block_m + std::max(loaded_n, block_n)) * kChunkK * 2;
    const int64_t smem_bytes = std::min<int64_t>(chunks_, c.shape.stages) * stage_bytes + 2048;
    const double turn_us = kMostSmemBytes / smem_bytes > 1 ? kTurnUs : kWholeTurnUs;
    // wgmma takes half as many cycles as columns for each of its 64 rows and 16 k.
    const double multiply_us = 2.0 * block_m / 64 * block_n / kCyclesPerUs;
    const double stage_us = c.cluster > 1 ? kSharedStageUs : kStageUs;
    const double box_us = c.cluster > 1 ? kSharedBoxUs : kBoxUs;
    // Of things that overlap, a little more than the longest.
    const double overlapped = std::sqrt(
        std::sqrt(fourth(turns * chunks * sm_lines / kSmLinesPerUs) +
                  fourth(static_cast<double>(ctas) * chunks * from_l2 / kL2LinesPerUs) +
                  fourth(turns * chunks * (std::max(stage_us, multiply_us) + box_us * boxes)) +
                  fourth(bytes_ / kMemoryBytesPerUs)));
    return kLaunchUs + kRampUs * std::min(1.0, bytes_ / kRampBytes) + overlapped +
           turn_us * (turns - 1) + kStoreUs * c.tile_m * c.tile_n +
           (c.cluster > 1 ? kClusterUs : 0) + (block_m == 64 && block_n > 64 ? sums_us() : 0) +
           (swapped_ ? kTransposeUs : 0);
  }

  // Of a stage of K. A box across K takes as many as it has k.
  static double lines(bool mn, int64_t extent, int tile, double of_row) {
    if (is_few(mn, extent)) {
      return kChunkK * (extent <= kHalfSector ? kLinesOfHalfSector : kLinesOfFew);
    }
    return static_cast<double>(std::min<int64_t>(extent, tile)) * of_row;
  }

  double sums_us() const {
    return chunks_ >= kLongChunks && a_lines_ + b_lines_ == 2 ? kSumsOfLongUs : kSumsUs;
  }

  // Of those that 128 bytes of a row lie in, on average: some rows may begin with a line.
  static double lines_of_row(int64_t stride) {
    const auto begin = static_cast<double>(std::gcd<int64_t>(stride, kChunkK)) / kChunkK;
    return begin + (1 - begin) * kLinesOfUnevenRow;
  }

  const Problem& p_;
  bool swapped_, vector_store_;
  int sm_count_;
  bool a_mn_, b_mn_;
  int64_t chunks_, batch_ = 1;
  double bytes_, a_lines_, b_lines_;
  Config* best_;
  double* best_us_;
};

// What the estimate lacks where few rows or columns stream: of long K, and of fewer rows, that lie
// along K, of any (fitted with the choice's other constants to 570 products of up to 128 rows).
constexpr int64_t kFewRows = 128, kVeryFewRows = 40, kLongK = 2500;
constexpr double kFewRowsOfLongK = 1.14, kFewRowsOfShortK = 1.16;

}  // namespace

bool select(const Problem& p, const DeviceInfo& device, Config* config, double* estimate_us) {
  if (device.capability != 90 || p.dtype == DType::kF32 || p.k == 0) return false;
  if (p.alpha != 1.0f || p.beta != 0.0f) return false;
  if (!extents_fit_tma(p) || !a_fits_tma(p) || !b_fits_tma(p)) return false;
  *estimate_us = std::numeric_limits<double>::infinity();
  Chooser(p, device, false, config, estimate_us).choose();
  const Problem other = swapped(p);
  Chooser(other, device, true, config, estimate_us).choose();
  const int64_t few = std::min(p.m, p.n);
  const bool few_k_major = p.m < p.n ? a_k_major(p) : b_k_major(p);
  if (few <= kFewRows && p.k >= kLongK) {
    *estimate_us *= kFewRowsOfLongK;
  } else if (few <= kVeryFewRows && few_k_major) {
    *estimate_us *= kFewRowsOfShortK;
  }
  return *estimate_us < std::numeric_limits<double>::infinity();
}

}  // namespace xgemm::cuda::gemm::sm90::small
