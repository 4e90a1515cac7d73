#include "cuda/gemm/tf32/select.h"

#include <algorithm>
#include <cstdlib>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/split_k.h"
#include "cuda/gemm/tf32/plan.h"
#include "cuda/gemm/tf32/tiles.h"

namespace xgemm::cuda::gemm::tf32 {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// A tile, the CTAs of a cluster, and the share of the tensor cores' rate that its mainloop
// reaches.
struct Tile {
  TileShape shape;
  int cluster;
  double efficiency;
};
#define XGEMM_TILE(X, Y, CLUSTER, PERCENT) Tile{{X, Y}, CLUSTER, 0.01 * PERCENT},
constexpr Tile kTilesOfThree[] = {XGEMM_TF32X3_TILES(XGEMM_TILE)};
constexpr Tile kTilesOfOne[] = {XGEMM_TF32_TILES(XGEMM_TILE)};
#undef XGEMM_TILE

// A fit of an H200's times of 198 shapes, 4,324 tiles and splits of them, of which kLinesPerCycle
// was moved for large unaligned shapes: over these the choice takes about 2.3 % (one product)
// longer than the best; with three products, 0.2 % before that.
constexpr double kLaunchUs = 3.1, kStartUs = 1.1;
constexpr double kFmasPerCycle = 1024;  // of TF32, one SM
constexpr double kTileUs = 1.1;         // filling the pipeline
constexpr double kElementUs = 9.4e-5;   // the epilogue, for each element of a tile
constexpr double kWrongWayUs = 1.7;     // more, where D is contiguous along Y
// The epilogue for each element of a D that is not aligned, contiguous along X and along Y: these
// are stored one by one. (Fitted to 1,254 products of which the choice was another without it.)
constexpr double kLooseElementUs = 2.4e-4, kLooseWrongWayUs = 4.5e-4;
constexpr double kReadBytesPerUs = 2.2e6;
constexpr double kOverlapLost = 0.14;  // of the shorter of products and reads
// L2 gives an SM so many lines of 128 bytes a cycle; an operand whose contiguous runs do not all
// begin with a line takes two for each of a box's rows (3617x2784x4204 takes 280 us by clusters,
// which share operands, and 355 by the same tile without).
constexpr double kLinesPerCycle = 0.6;
constexpr double kSectorsLines = 1.5;  // for runs that begin with a sector of 32 bytes
constexpr double kReduceUs = 3.5;      // the second launch of split-K
constexpr double kReduceBytesPerUs = 3.5e6;
constexpr double kCopyUs = 4.3, kCopyBytesPerUs = 3.8e6;
constexpr int64_t kMinKTilesPerSplit = 4, kMaxSplits = 32;
constexpr int64_t kMaxWorkspace = int64_t{1} << 28;
constexpr int64_t kMaxUnits = INT32_MAX - (1 << 16);  // a CTA counts them in 32 bits

// X is A or, `swapped`, B. What is copied first: an operand that TMA cannot read, or a Y that is
// not along k.
struct Side {
  bool swapped;
  Matrix x, y;
  bool x_copied, y_copied;
  align::Copies copies{};
  bool fits;  // can be copied so

  Side(const GemmProblem& p, bool is_swapped)
      : swapped(is_swapped),
        x(swapped ? b_of(p) : a_of(p)),
        y(swapped ? a_of(p) : b_of(p)),
        x_copied(!x.fits_along_k() && !x.fits_along_rows(p.k)),
        y_copied(!y.fits_along_k()) {
    if (swapped ? y_copied : x_copied) copies.a = align::Order::kAlongK;
    if (swapped ? x_copied : y_copied) copies.b = align::Order::kAlongK;
    fits = !copies.any() || fp32::place_copies(p, &copies);
  }
};

struct Candidate {
  const Tile* tile;
  const Side* side;
  int64_t parts;  // of K, that it is to have
};

// How a candidate cuts the problem.
struct Cut {
  int64_t per_split, splits, units;  // k-tiles of a part; parts of K; parts of all tiles
  int64_t partials;                  // bytes
};

// Lines of L2 for 32 k of a row, or 32 rows of a k.
double lines(const Matrix& matrix, bool copied) {
  const int64_t stride = matrix.fits_along_k() ? matrix.row_stride : matrix.k_stride;
  if (copied || stride % 32 == 0) return 1;
  return stride % 8 == 0 ? kSectorsLines : 2;
}

// Of a cluster's CTAs together.
int64_t tiles_of(const GemmProblem& p, const Tile& tile, bool swapped) {
  return ceil_div<int64_t>(swapped ? p.n : p.m, tile.shape.x * tile.cluster) *
         ceil_div<int64_t>(swapped ? p.m : p.n, tile.shape.y) * batches_of(p);
}

// What D is contiguous along: N, else M.
bool d_along_n(const GemmProblem& p) {
  return std::abs(p.d_col_stride) <= std::abs(p.d_row_stride);
}

// Whether all of what is contiguous begins with a multiple of 16 bytes.
bool d_is_aligned(const GemmProblem& p) {
  const int64_t step = d_along_n(p) ? p.d_row_stride : p.d_col_stride;
  const int64_t batch_step = p.batch_dims > 0 ? p.batch[0].d : 0;
  return (step | batch_step) % 4 == 0 && reinterpret_cast<uintptr_t>(p.d) % 16 == 0;
}

// Nothing where there are too many parts, or too large ones.
std::optional<Cut> cut_of(const GemmProblem& p, const Candidate& c) {
  const int64_t batches = batches_of(p);
  const int64_t k_tiles = ceil_div<int64_t>(p.k, kBlockK);
  const int64_t per_split = ceil_div(k_tiles, c.parts), splits = ceil_div(k_tiles, per_split);
  const int64_t units = tiles_of(p, *c.tile, c.side->swapped) * splits;
  const int64_t partials =
      splits > 1 ? 4 * splits * batches * round_up<int64_t>(p.m, 4) * round_up<int64_t>(p.n, 4) : 0;
  if (partials > kMaxWorkspace || units > kMaxUnits / c.tile->cluster) return std::nullopt;
  return Cut{per_split, splits, units, partials};
}

class Model {
 public:
  using Candidate = tf32::Candidate;

  Model(const GemmProblem& p, const DeviceInfo& device)
      : p_(p),
        gpu_(choose::constants_of(device)),
        sides_{{p, false}, {p, true}},
        sm_count_(std::max(device.sm_count, 1)) {}

  template <typename Search>
  void candidates(Search& search) const {
    for (const Side& side : sides_) {
      if (!side.fits) continue;
      if (p_.precision == Precision::kTf32x3) {
        for (const Tile& tile : kTilesOfThree) of_tile(tile, side, search);
      } else {
        for (const Tile& tile : kTilesOfOne) of_tile(tile, side, search);
      }
    }
  }

  Estimate estimate(const Candidate& c, double) const;

  Choice choice(const Candidate& c) const {
    const int cluster = c.tile->cluster;
    const Cut cut = *cut_of(p_, c);
    const int64_t most = sm_count_ / cluster;
    return {.config = Config{.tile = c.tile->shape,
                             .swapped = c.side->swapped,
                             .cluster = cluster,
                             .splits = static_cast<int>(cut.splits),
                             .ctas = static_cast<int>(std::min(cut.units, most)) * cluster},
            .copies = c.side->copies,
            .workspace_bytes = cut.partials + c.side->copies.bytes,
            .reason = "TF32 tensor cores are estimated to be faster than FP32 cores"};
  }

 private:
  template <typename Search>
  void of_tile(const Tile& tile, const Side& side, Search& search) const {
    if (tile.cluster > sm_count_) return;
    const int64_t k_tiles = ceil_div<int64_t>(p_.k, kBlockK);
    const int64_t most = std::clamp<int64_t>(k_tiles / kMinKTilesPerSplit, 1, kMaxSplits);
    const int64_t tiles = tiles_of(p_, tile, side.swapped);
    search.consider({&tile, &side, 1});
    for (const int waves : {1, 2}) {  // K in as many parts as fill the SMs so often
      const int64_t parts =
          std::min<int64_t>(int64_t{sm_count_ / tile.cluster} * waves / tiles, most);
      if (parts > 1) search.consider({&tile, &side, parts});
    }
  }

  const GemmProblem& p_;
  const choose::DeviceConstants& gpu_;
  Side sides_[2];
  int sm_count_;
};

Estimate Model::estimate(const Candidate& c, double) const {
  const auto cut = cut_of(p_, c);
  if (!cut) return {};
  const Side& side = *c.side;
  const TileShape shape = c.tile->shape;
  const int cluster = c.tile->cluster;
  const double products = p_.precision == Precision::kTf32x3 ? 3 : 1;
  const double fma_cycles =
      products * kBlockK * shape.x * shape.y / (kFmasPerCycle * c.tile->efficiency);
  const double line_cycles =
      (shape.x * lines(side.x, side.x_copied) + shape.y * lines(side.y, side.y_copied) / cluster) /
      kLinesPerCycle;
  const auto k_tiles = static_cast<double>(cut->per_split);
  const double k_us = k_tiles * std::max(fma_cycles, line_cycles) / gpu_.mma_cycles_per_us;
  // Eight lanes of a store have rows of X, so X should be what D is contiguous along.
  const bool along_x = d_along_n(p_) == side.swapped;
  double store_us = kElementUs * shape.x * shape.y + (along_x ? 0.0 : kWrongWayUs);
  if (cut->splits == 1 && !d_is_aligned(p_)) {
    const double elements = static_cast<double>(p_.m) * static_cast<double>(p_.n) *
                            static_cast<double>(batches_of(p_)) /
                            static_cast<double>(cut->units * cluster);  // of a tile that exist
    store_us = std::max(store_us, (along_x ? kLooseElementUs : kLooseWrongWayUs) * elements);
  }
  const double tile_us = kTileUs + store_us;
  const double read = 4.0 * static_cast<double>(p_.k) * static_cast<double>(p_.m + p_.n) *
                      static_cast<double>(batches_of(p_));
  const auto waves =
      static_cast<double>(ceil_div<int64_t>(cut->units, std::max(sm_count_ / cluster, 1)));
  const double busy = waves * (k_us + tile_us), stream = read / (kReadBytesPerUs * gpu_.dram_speed);
  double us = kLaunchUs + kStartUs + std::max(busy, stream) + kOverlapLost * std::min(busy, stream);
  double reduce_us = 0, copies_us = 0;
  if (cut->splits > 1) {
    reduce_us = kReduceUs +
                2.0 * static_cast<double>(cut->partials) / (kReduceBytesPerUs * gpu_.dram_speed);
    us += reduce_us;
  }
  if (side.copies.bytes > 0) {
    copies_us = kCopyUs +
                2.0 * static_cast<double>(side.copies.bytes) / (kCopyBytesPerUs * gpu_.dram_speed);
    us += copies_us;
  }
  return {.us = us,
          .parts = {.launch = kLaunchUs,
                    .first_bytes = kStartUs,
                    .dram = stream,
                    .l2 = waves * k_tiles * line_cycles / gpu_.mma_cycles_per_us,
                    .mma = waves * k_tiles * fma_cycles / gpu_.mma_cycles_per_us,
                    .exchange = reduce_us,
                    .epilogue = waves * tile_us,
                    .copies = copies_us}};
}

// mma.sync: any strides and batches. K is in as many parts as fill the SMs once.
std::optional<Scored<Choice>> select_sm80(const GemmProblem& p, const DeviceInfo& device) {
  constexpr int64_t kMinKPerSplit = 256;
  constexpr double kMmaEfficiency = 0.6;
  constexpr double kMmaCyclesPerUs = 1400, kMmaWaveUs = 3;
  // What data centers have: elsewhere TF32 is no faster than fp32, and three products are slower.
  const int capability = device.capability;
  const bool large = capability == 80 || (capability >= 90 && capability < 120);
  const bool three = p.precision == Precision::kTf32x3;
  if (three && !large) return std::nullopt;
  const int sm_count = std::max(device.sm_count, 1);
  const fp32::Params shape = fp32::make_params(p);
  const int64_t tiles =
      ceil_div<int64_t>(p.m, sm80::kTile) * ceil_div<int64_t>(p.n, sm80::kTile) * shape.batches;
  const int64_t least = least_splits(p.k);
  const int64_t most = std::max(least, std::min<int64_t>(p.k / kMinKPerSplit, kMaxSplits));
  const auto [k_per_split, splits, partials] =
      splits_of(shape, std::clamp<int64_t>(int64_t{sm_count} / tiles, least, most), fp32::kBlockK);
  if (partials > kMaxWorkspace && least == 1) return std::nullopt;
  // FMAs a cycle, one SM; Hopper and Blackwell keep more for wgmma and tcgen05.
  const double peak = !large ? 128 : capability == 80 ? 512 : 660;
  const double rate = peak * kMmaEfficiency;
  const double fmas =
      static_cast<double>(k_per_split) * sm80::kTile * sm80::kTile * (three ? 3 : 1);
  const int64_t waves = ceil_div<int64_t>(tiles * splits, sm_count);
  const auto& gpu = choose::constants_of(device);
  const double mma_us =
      static_cast<double>(waves) * (fmas / rate / (kMmaCyclesPerUs * gpu.clock_speed));
  const double reduce_us = splits > 1 ? kReduceUs + 2.0 * static_cast<double>(partials) /
                                                        (kReduceBytesPerUs * gpu.dram_speed)
                                      : 0;
  return Scored<Choice>{
      {.config =
           sm80::Config{.splits = static_cast<int>(splits),
                        .ctas = static_cast<int>(std::min<int64_t>(tiles * splits, INT32_MAX))},
       .workspace_bytes = partials,
       .reason = "TF32 by mma.sync is estimated to be faster than FP32 cores"},
      {.us = kLaunchUs + mma_us + kMmaWaveUs + reduce_us,
       .parts = {
           .launch = kLaunchUs, .mma = mma_us, .exchange = reduce_us, .epilogue = kMmaWaveUs}}};
}

}  // namespace

std::optional<Scored<Choice>> select(const GemmProblem& p, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  if (device.capability < 80 || p.k == 0) return std::nullopt;
  if (device.capability == 90 && fits(p)) {
    return choose::pick<Choice>(Model(p, device), listing);
  }
  const auto sm80 = select_sm80(p, device);
  if (sm80 && listing != nullptr) listing->push_back(*sm80);
  return sm80;
}

}  // namespace xgemm::cuda::gemm::tf32
