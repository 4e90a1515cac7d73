#include "cuda/gemm/tf32/select.h"

#include <algorithm>
#include <cmath>
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

// A tile, and the share of the tensor cores' rate that its mainloop reaches.
struct Tile {
  TileShape shape;
  double efficiency;
};
#define XGEMM_TILE(X, Y, PERCENT) Tile{{X, Y}, 0.01 * PERCENT},
constexpr Tile kTilesOfThree[] = {XGEMM_TF32X3_TILES(XGEMM_TILE)};
constexpr Tile kTilesOfOne[] = {XGEMM_TF32_TILES(XGEMM_TILE)};
#undef XGEMM_TILE

// A fit of an H200's times of half of 3,840 random products (docs/measurements/fp32.md, "The
// choice").
constexpr double kLaunchUs = 4.966;     // until the first tile has come
constexpr double kFmasPerCycle = 1024;  // of TF32, one SM
constexpr double kTileUs = 0.732;       // of a tile, between mainloop and epilogue
constexpr double kCodeUs = 0.845;       // the epilogue's instructions, for 128 columns of a tile
constexpr double kMemoryBytesPerUs = 5.961e6, kL2BytesPerUs = 13.64e6;  // of all SMs
// What runs of 128 bytes that do not begin with a sector of 32 bytes cost L2 more.
constexpr double kSectorShare = 0.871;
// The epilogue, for each element: four along Y at a time, two along X; one by one along X, where
// eight lanes have a sector; the same where D is not aligned; one by one along Y.
constexpr double kQuadUs = 0.386e-4, kPairUs = 0.976e-4, kAlongXUs = 0.528e-4;
constexpr double kLooseAlongXUs = 1.366e-4, kLooseAlongYUs = 2.468e-4;
constexpr double kCopyUs = 3.654, kCopyBytesPerUs = 3.408e6;
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

// L2's traffic over the bytes of an operand.
double sectors(const Matrix& matrix, bool copied) {
  const int64_t stride = matrix.fits_along_k() ? matrix.row_stride : matrix.k_stride;
  return copied || stride % 8 == 0 ? 1 : 1 + kSectorShare;
}

int64_t tiles_of(const GemmProblem& p, const Tile& tile, bool swapped) {
  return ceil_div<int64_t>(swapped ? p.n : p.m, tile.shape.x) *
         ceil_div<int64_t>(swapped ? p.m : p.n, tile.shape.y) * batches_of(p);
}

// What D is contiguous along: N, else M.
bool d_along_n(const GemmProblem& p) {
  return std::abs(p.d_col_stride) <= std::abs(p.d_row_stride);
}

// Whether all of what is contiguous begins with a multiple of so many elements.
bool d_is_aligned(const GemmProblem& p, int64_t elements) {
  const int64_t step = d_along_n(p) ? p.d_row_stride : p.d_col_stride;
  const int64_t batch_step = p.batch_dims > 0 ? p.batch[0].d : 0;
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.d) / sizeof(float));
  return (step | batch_step | address) % elements == 0;
}

// Of an element of a tile that is whole, and of one that is not: those are stored one by one.
struct Stores {
  double whole, ragged;
};
Stores stores_of(const GemmProblem& p, const Side& side, bool split) {
  const bool quads = split || d_is_aligned(p, 4), pairs = split || d_is_aligned(p, 2);
  if (d_along_n(p) != side.swapped) return {quads ? kQuadUs : kLooseAlongYUs, kLooseAlongYUs};
  const double single = quads ? kAlongXUs : kLooseAlongXUs;
  const bool along_rows = !side.x_copied && !side.x.fits_along_k();
  return along_rows && pairs ? Stores{kPairUs, kAlongXUs} : Stores{single, single};
}

// Nothing where there are too many parts, or too large ones.
std::optional<Cut> cut_of(const GemmProblem& p, const Candidate& c) {
  const int64_t batches = batches_of(p);
  const int64_t k_tiles = ceil_div<int64_t>(p.k, kBlockK);
  const int64_t per_split = ceil_div(k_tiles, c.parts), splits = ceil_div(k_tiles, per_split);
  const int64_t units = tiles_of(p, *c.tile, c.side->swapped) * splits;
  const int64_t partials =
      splits > 1 ? 4 * splits * batches * round_up<int64_t>(p.m, 4) * round_up<int64_t>(p.n, 4) : 0;
  if (partials > kMaxWorkspace || units > kMaxUnits) return std::nullopt;
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
    const Cut cut = *cut_of(p_, c);
    return {.config = Config{.tile = c.tile->shape,
                             .swapped = c.side->swapped,
                             .splits = static_cast<int>(cut.splits),
                             .ctas = static_cast<int>(std::min<int64_t>(cut.units, sm_count_))},
            .copies = c.side->copies,
            .workspace_bytes = cut.partials + c.side->copies.bytes,
            .reason = "TF32 tensor cores are estimated to be faster than FP32 cores"};
  }

 private:
  template <typename Search>
  void of_tile(const Tile& tile, const Side& side, Search& search) const {
    const int64_t k_tiles = ceil_div<int64_t>(p_.k, kBlockK);
    const int64_t most = std::clamp<int64_t>(k_tiles / kMinKTilesPerSplit, 1, kMaxSplits);
    const int64_t tiles = tiles_of(p_, tile, side.swapped);
    search.consider({&tile, &side, 1});
    for (const int waves : {1, 2}) {  // K in as many parts as fill the SMs so often
      const int64_t parts = std::min<int64_t>(int64_t{sm_count_} * waves / tiles, most);
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
  const int64_t x = c.tile->shape.x, y = c.tile->shape.y, m = side.x.rows, n = side.y.rows;
  const bool three = p_.precision == Precision::kTf32x3;
  const auto batches = static_cast<double>(batches_of(p_));
  const auto waves = static_cast<double>(ceil_div<int64_t>(cut->units, sm_count_));
  const double memory_bytes = kMemoryBytesPerUs * gpu_.dram_speed;
  const double k_bytes = 4.0 * static_cast<double>(p_.k) * batches;
  const double read_us = k_bytes * static_cast<double>(m + n) / memory_bytes;
  const double store_bytes = 4.0 * static_cast<double>(m) * static_cast<double>(n) * batches;
  const double write_us = store_bytes * static_cast<double>(cut->splits) / memory_bytes;
  const double lines_of_x =
      static_cast<double>(ceil_div(n, y) * m) * sectors(side.x, side.x_copied);
  const double lines_of_y =
      static_cast<double>(ceil_div(m, x) * n) * sectors(side.y, side.y_copied);
  const double l2_us = k_bytes * (lines_of_x + lines_of_y) / (kL2BytesPerUs * gpu_.l2_speed);
  const double fmas = (three ? 3.0 : 1.0) * kBlockK * static_cast<double>(x * y * cut->per_split);
  const double mma_us =
      waves * fmas / (kFmasPerCycle * c.tile->efficiency * gpu_.mma_cycles_per_us);
  // Whole tiles, and in the last wave those at the ends, where these take longer.
  const Stores of = stores_of(p_, side, cut->splits > 1);
  const int64_t ends = std::max(m % x * std::min(n, y), n % y * std::min(m, x));
  const double whole_us = m >= x && n >= y ? of.whole * static_cast<double>(x * y) : 0;
  const double ends_us = of.ragged * static_cast<double>(ends);
  const double stores_us =
      (waves - 1) * (whole_us > 0 ? whole_us : ends_us) + std::max(whole_us, ends_us);
  // Waves overlap each other's loads, products and stores; one wave alone has them in turn.
  const double tiles_us = waves * kTileUs;
  const double together = std::hypot(mma_us + tiles_us + stores_us, read_us + write_us, l2_us);
  const double in_turn =
      tiles_us + std::hypot(mma_us, read_us, l2_us) + std::hypot(stores_us, write_us);
  const double code_us = kCodeUs / 128 * static_cast<double>(y) *
                         (three ? static_cast<double>(x) / 128 : 1.0) / gpu_.clock_speed;
  double us = kLaunchUs + code_us + together + std::max(in_turn - together, 0.0) / waves;
  const double reduce_us = fp32::reduce_us(cut->splits, cut->partials, gpu_);
  us += reduce_us;
  double copies_us = 0;
  if (side.copies.bytes > 0) {
    copies_us = kCopyUs +
                2.0 * static_cast<double>(side.copies.bytes) / (kCopyBytesPerUs * gpu_.dram_speed);
    us += copies_us;
  }
  return {.us = us,
          .parts = {.launch = kLaunchUs,
                    .dram = read_us + write_us,
                    .l2 = l2_us,
                    .mma = mma_us,
                    .issue = code_us,
                    .exchange = reduce_us,
                    .epilogue = tiles_us + stores_us,
                    .copies = copies_us}};
}

// mma.sync: any strides and batches; K whole, or in as many parts as fill the SMs once.
class MmaSyncModel {
 public:
  using Candidate = int64_t;  // parts of K, that there are to be

  MmaSyncModel(const GemmProblem& p, const DeviceInfo& device)
      : device_(device),
        products_(p.precision == Precision::kTf32x3 ? 3 : 1),
        // Hopper's and Blackwell's data-center GPUs keep more for wgmma and tcgen05.
        rate_(device.capability == 80                              ? 512
              : device.capability >= 90 && device.capability < 120 ? 660
                                                                   : kFmasOfOthers),
        params_(fp32::make_params(p)),
        tiles_(ceil_div<int64_t>(p.m, sm80::kTile) * ceil_div<int64_t>(p.n, sm80::kTile) *
               params_.batches) {}

  template <typename Search>
  void candidates(Search& search) const {
    // Elsewhere TF32 is no faster than fp32, and three products are slower.
    if (products_ > 1 && rate_ == kFmasOfOthers) return;
    const int64_t least = least_splits(params_.k);
    const int64_t most = std::max(least, std::min<int64_t>(params_.k / kMinKPerSplit, kMaxSplits));
    const int64_t filling = std::clamp<int64_t>(device_.sm_count / tiles_, least, most);
    search.consider(least);
    if (splits(filling).workspace_bytes <= kMaxWorkspace) search.consider(filling);
  }

  Estimate estimate(Candidate parts, double) const {
    const auto [k_each, count, partials] = splits(parts);
    const auto& gpu = choose::constants_of(device_);
    const int64_t waves = ceil_div<int64_t>(tiles_ * count, std::max(device_.sm_count, 1));
    const double mma_us = static_cast<double>(waves * k_each * sm80::kTile * sm80::kTile) *
                          products_ / (rate_ * kEfficiency * kCyclesPerUs * gpu.clock_speed);
    const double reduce_us = fp32::reduce_us(count, partials, gpu);
    return {
        .us = kLaunchUs + mma_us + kWaveUs + reduce_us,
        .parts = {.launch = kLaunchUs, .mma = mma_us, .exchange = reduce_us, .epilogue = kWaveUs}};
  }

  Choice choice(Candidate parts) const {
    const auto [k_each, count, partials] = splits(parts);
    return {
        .config =
            sm80::Config{.splits = static_cast<int>(count),
                         .ctas = static_cast<int>(std::min<int64_t>(tiles_ * count, INT32_MAX))},
        .workspace_bytes = partials,
        .reason = "TF32 by mma.sync is estimated to be faster than FP32 cores"};
  }

 private:
  static constexpr int64_t kMinKPerSplit = 256;
  static constexpr double kEfficiency = 0.6, kCyclesPerUs = 1400, kWaveUs = 3;
  static constexpr double kFmasOfOthers = 128;  // a cycle, one SM

  Splits splits(int64_t parts) const { return splits_of(params_, parts, fp32::kBlockK); }

  const DeviceInfo& device_;
  double products_, rate_;  // of TF32; FMAs a cycle, one SM
  fp32::Params params_;
  int64_t tiles_;
};

}  // namespace

std::optional<Scored<Choice>> select(const GemmProblem& p, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  if (device.capability < 80 || p.k == 0) return std::nullopt;
  if (device.capability == 90 && fits(p)) {
    return choose::pick<Choice>(Model(p, device), listing);
  }
  return choose::pick<Choice>(MmaSyncModel(p, device), listing);
}

}  // namespace xgemm::cuda::gemm::tf32
