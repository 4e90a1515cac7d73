#include "cuda/gemm/fp32/sm90/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"
#include "cuda/gemm/fp32/plan.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

// A tile, the k of its stages, the share of the FP32 cores' rate that its main loop reaches, and an
// SM's time for the start and the end of one.
struct Tile {
  int block_m, block_n, depth;
  double efficiency, tile_us;
};

// A model of rounds. An SM that has room gets two CTAs at once, so that rounds are of as many as
// the SMs hold, whatever the last one has; only where there are no more CTAs than SMs is each alone
// on one. Constants: a fit of an H200's times of 100 shapes, each by up to 50 tiles, splits and
// copies.
constexpr Tile kTiles[] = {
    {128, 128, 32, 0.872, 2.3},
    {128, 64, 32, 0.86, 1.8},
    {64, 64, 64, 0.859, 1.65},
};
constexpr int kCtasPerSm = 2;
constexpr double kCyclesPerUs = 1980, kFmasPerCycle = 128;  // of an SM
constexpr double kStartUs = 6.0;  // the launch, and until the first tile has come
constexpr double kAlone = 1.7;    // a CTA alone takes so many times its share of an SM's time
constexpr double kAlongK[] = {0, 0.11, 0.18};  // more, by how many operands lie along k
constexpr double kUneven = 0.032;              // more, as SMs differ
constexpr double kPartsUs = 1.4, kPartsBytesPerUs = 3.4e6;  // the sum of parts, a second launch
constexpr double kPartUs = 0.08;                            // more, for each part of a tile over 8
constexpr double kCopyUs = 1.7, kCopyBytesPerUs = 3.7e6;    // one launch for both operands

constexpr int64_t kMostWorkspace = int64_t{1} << 28;  // of parts
constexpr int64_t kMostParts = 12, kMostPartsOfFew = 64;

// All, but for the copies' bytes and time.
struct Choice {
  const Tile* tile = nullptr;
  int64_t splits = 1, ctas = 0, parts_bytes = 0;
  double us = std::numeric_limits<double>::infinity();
};

class Search {
 public:
  Search(const Params& p, int along_k, int sm_count)
      : p_(p), slower_(1 + kAlongK[along_k]), sm_count_(sm_count), slots_(sm_count * kCtasPerSm) {}

  Choice best;

  void consider(const Tile& tile) {
    tile_ = &tile;
    tiles_ =
        ceil_div<int64_t>(p_.m, tile.block_m) * ceil_div<int64_t>(p_.n, tile.block_n) * p_.batches;
    consider_parts(tiles_, 1);
    // The tiles of the last round, of the last two, and all.
    const int64_t rounds = tiles_ / slots_, k_tiles = ceil_div<int64_t>(p_.k, tile.depth);
    for (int64_t last = 0; last <= std::min<int64_t>(rounds, 2); ++last) {
      const int64_t whole = (rounds - last) * slots_;
      if (whole == tiles_ || (last == 2 && whole > 0)) continue;
      const int64_t split_tiles = tiles_ - whole;
      const auto consider_splits = [&](int64_t splits) {
        // None of them empty.
        if (ceil_div(k_tiles, ceil_div(k_tiles, splits)) == splits) consider_parts(whole, splits);
      };
      for (int64_t splits = 2; splits <= kMostParts && split_tiles * splits <= 4 * slots_;
           ++splits) {
        consider_splits(splits);
      }
      if (whole > 0) continue;
      // Few tiles: as many parts as give each SM one, or all that it holds.
      for (const int64_t ctas : {sm_count_, slots_}) {
        const int64_t per_part =
            ceil_div(k_tiles, std::clamp<int64_t>(ctas / tiles_, 1, kMostPartsOfFew));
        const int64_t splits = ceil_div(k_tiles, per_part);
        if (splits > kMostParts) consider_parts(0, splits);
      }
    }
  }

 private:
  // Of `count` tiles of `k_tiles` stages each.
  double rounds_us(int64_t count, int64_t k_tiles, bool first) const {
    const double fmas = static_cast<double>(tile_->block_m * tile_->block_n) *
                        static_cast<double>(k_tiles * tile_->depth);
    const double us =
        fmas * slower_ / (kFmasPerCycle * kCyclesPerUs * tile_->efficiency) + tile_->tile_us;
    if (first && count <= sm_count_) return us * kAlone;
    return us * static_cast<double>(kCtasPerSm * ceil_div(count, slots_));
  }

  void consider_parts(int64_t whole, int64_t splits) {
    const int64_t k_tiles = ceil_div<int64_t>(p_.k, tile_->depth);
    const int64_t parts = splits > 1 ? (tiles_ - whole) * splits : 0;
    const int64_t bytes = parts * tile_->block_m * tile_->block_n * 4;
    double us = 0;
    if (whole > 0) us += rounds_us(whole, k_tiles, true);
    if (parts > 0) us += rounds_us(parts, ceil_div(k_tiles, splits), whole == 0);
    us = kStartUs + us * (1 + kUneven);
    if (parts > 0) {
      us += kPartsUs + static_cast<double>(bytes) / kPartsBytesPerUs +
            kPartUs * static_cast<double>(std::max<int64_t>(splits - 8, 0));
    }
    if (us >= best.us || bytes > kMostWorkspace) return;
    best = {tile_, splits, whole + parts, bytes, us};
  }

  const Params& p_;
  double slower_;
  int64_t sm_count_, slots_;
  const Tile* tile_ = nullptr;
  int64_t tiles_ = 0;
};

// TMA counts rows, k and batches in 32 bits, and one grid has all CTAs.
bool fits_int32(const Params& p) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const double tiles = static_cast<double>(ceil_div<int64_t>(p.m, 64)) *
                       static_cast<double>(ceil_div<int64_t>(p.n, 64)) *
                       static_cast<double>(p.batches);
  return p.m < kMost && p.n < kMost && p.k < kMost && p.batches < kMost && tiles < kMost / 16;
}

double copy_us(double bytes) { return kCopyUs + 2.0 * bytes / kCopyBytesPerUs; }

// Which of the kernel's operands are copied: those that TMA cannot read, and those along k where
// that takes less time than to transpose their tiles each time that they are brought.
struct Copies {
  bool a, b;
  int along_k;  // of how many this is not so

  Copies(const Params& p, int sm_count)
      : a(!fits_tma(p, p.a, p.m, &BatchDim::a)), b(!fits_tma(p, p.b, p.n, &BatchDim::b)) {
    const bool a_along_k = !a && p.a.access == Access::kAlongK;
    const bool b_along_k = !b && p.b.access == Access::kAlongK;
    along_k = (a_along_k ? 1 : 0) + (b_along_k ? 1 : 0);
    if (along_k == 0 || p.batch_dims > 0) return;
    const double k = static_cast<double>(p.k), m = static_cast<double>(p.m),
                 n = static_cast<double>(p.n);
    const double us = m * n * k / (kFmasPerCycle * kCyclesPerUs * sm_count * kTiles[0].efficiency);
    const double bytes = 4.0 * k * ((a_along_k ? m : 0.0) + (b_along_k ? n : 0.0));
    if (copy_us(bytes) - (a || b ? kCopyUs : 0.0) > kAlongK[along_k] * us) return;
    a |= a_along_k, b |= b_along_k, along_k = 0;
  }
};

}  // namespace

bool select(const Problem& problem, const Params& p, const DeviceInfo& device, Config* config,
            double* estimate_us) {
  if (device.capability != 90 || p.batch_dims > 1 || p.k == 0 || !fits_int32(p)) return false;
  const int sm_count = std::max(device.sm_count, 1);
  const Copies copies(p, sm_count);
  // make_params may have swapped the problem's operands.
  const bool copy_a = p.transposed ? copies.b : copies.a;
  const bool copy_b = p.transposed ? copies.a : copies.b;
  const int64_t bytes = copies_bytes(problem, copy_a, copy_b);
  if (bytes < 0) return false;
  Search search(p, copies.along_k, sm_count);
  for (const Tile& tile : kTiles) search.consider(tile);
  const Choice& best = search.best;
  if (best.tile == nullptr) return false;
  *estimate_us = best.us;
  if (copy_a || copy_b) *estimate_us += copy_us(static_cast<double>(bytes));
  *config = {.kernel = Kernel::kFp32Sm90,
             .block_m = best.tile->block_m,
             .block_n = best.tile->block_n,
             .stages = 3,
             .splits = static_cast<int>(best.splits),
             .ctas = static_cast<int>(best.ctas),
             .copy_a = copy_a,
             .copy_b = copy_b,
             .workspace_bytes = best.parts_bytes + bytes};
  return true;
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
