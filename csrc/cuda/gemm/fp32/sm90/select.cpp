#include "cuda/gemm/fp32/sm90/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"
#include "cuda/gemm/fp32/plan.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

// A tile, its warps, how many CTAs of it an SM holds where TMA loads and where threads copy
// (tile.cuh), and what share its main loop takes of the first one's time.
struct Tile {
  int block_m, block_n, warps, ctas_of_tma, ctas_of_copies;
  double slower;
};
constexpr Tile kTiles[] = {
    {64, 64, 4, 4, 3, 1.0}, {32, 128, 4, 3, 3, 1.18}, {32, 32, 1, 12, 12, 1.0}};
constexpr int64_t kMostRowsOfFlat = 96, kMostRowsOfSmall = 32;

// A model of rounds of as many CTAs as the SMs hold, and of a last one of fewer. Constants: a fit
// of an H200's times of 1,081 shapes, 9,865 tiles, splits and copies of them; over these the choice
// takes 1.1 % longer than the best.
// The share of the FP64 tensor cores' rate that four, eight ... warps reach in their main loops,
// and an SM's time for the start and the end of a round, and of four warps in it.
constexpr double kOfTma[] = {0.744, 0.873, 0.892, 0.975};
constexpr double kOfCopies[] = {0.635, 0.70, 0.70};
constexpr double kRoundUs = 0.28, kFourWarpsUs = 0.18;
constexpr double kCyclesPerUs = 1980, kFmasPerCycle = 128;  // of an SM
constexpr double kStartUs = 5.4;  // the launch, and until the first tile has come
constexpr double kBytesPerUs = 3.9e6, kStoreBytesPerUs = 6.5e6;  // of all that is read and stored
constexpr double kPartsUs = 3.4, kPartsBytesPerUs = 3.3e6;  // the sum of parts, a second launch
constexpr double kPartUs = 0.046;                           // more, for each part of a tile over 8
constexpr double kCopyUs = 2.95, kCopyBytesPerUs = 4.4e6;   // one launch for both operands

constexpr int64_t kDepth = 32, kPairOfSteps = 8;      // k of a stage; what is multiplied at least
constexpr int64_t kMostWorkspace = int64_t{1} << 28;  // of parts
constexpr int64_t kMostParts = 12, kMostPartsOfFew = 64;

// How operands get to the kernel.
struct Operands {
  bool copy_a = false, copy_b = false;  // the kernel's
  int64_t bytes = 0;                    // of the copies
  double us = 0;
  bool by_threads = false;  // else by TMA
};

struct Choice {
  const Tile* tile = nullptr;
  Operands operands;
  bool transposed = false;
  int64_t splits = 1, ctas = 0, parts_bytes = 0;
  double us = std::numeric_limits<double>::infinity();
};

class Search {
 public:
  Search(const Params& p, const Tile& tile, int sm_count, Choice* best)
      : p_(p),
        tile_(tile),
        sm_count_(sm_count),
        tiles_(ceil_div<int64_t>(p.m, tile.block_m) * ceil_div<int64_t>(p.n, tile.block_n) *
               p.batches),
        store_bytes_(4.0 * static_cast<double>(p.m) * static_cast<double>(p.n) *
                     static_cast<double>(p.batches)),
        stream_us_((store_bytes_ + 4.0 * static_cast<double>(p.k) * static_cast<double>(p.m + p.n) *
                                       static_cast<double>(p.batches)) /
                   kBytesPerUs),
        best_(best) {}

  void consider(const Operands& operands) {
    operands_ = operands;
    per_sm_ = operands.by_threads ? tile_.ctas_of_copies : tile_.ctas_of_tma;
    slots_ = int64_t{sm_count_} * per_sm_;
    consider_parts(tiles_, 1);
    // The tiles of the last round, of the last two, and all.
    const int64_t rounds = tiles_ / slots_, k_tiles = ceil_div<int64_t>(p_.k, kDepth);
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
      // Few tiles: as many parts as give each SM from one to all that it holds.
      for (int per_sm = 1; per_sm <= per_sm_; ++per_sm) {
        const int64_t per_part = ceil_div(
            k_tiles, std::clamp<int64_t>(int64_t{sm_count_} * per_sm / tiles_, 1, kMostPartsOfFew));
        const int64_t splits = ceil_div(k_tiles, per_part);
        if (splits > kMostParts) consider_parts(0, splits);
      }
    }
  }

 private:
  // Of `count` CTAs of so many k.
  double rounds_us(int64_t count, int64_t k) const {
    // Four warps' products of a step.
    const double us = tile_.slower * 4 / tile_.warps * tile_.block_m * tile_.block_n *
                      static_cast<double>(round_up(std::min(k, p_.k), kPairOfSteps)) /
                      (kFmasPerCycle * kCyclesPerUs);
    const double* of = operands_.by_threads ? kOfCopies : kOfTma;
    const auto round_us = [&](int ctas) {
      if (ctas == 0) return 0.0;
      const int fours = ceil_div(ctas * tile_.warps, 4);
      return fours * us / of[fours - 1] + kFourWarpsUs * ctas * tile_.warps / 4 + kRoundUs;
    };
    const auto last = static_cast<int>(ceil_div<int64_t>(count % slots_, sm_count_));
    return static_cast<double>(count / slots_) * round_us(per_sm_) + round_us(last);
  }

  void consider_parts(int64_t whole, int64_t splits) {
    const int64_t k_tiles = ceil_div<int64_t>(p_.k, kDepth);
    const int64_t parts = splits > 1 ? (tiles_ - whole) * splits : 0;
    const int64_t bytes = parts * tile_.block_m * tile_.block_n * 4;
    double us = 0;
    if (whole > 0) us += rounds_us(whole, p_.k);
    if (parts > 0) us += rounds_us(parts, ceil_div(k_tiles, splits) * kDepth);
    us = kStartUs + operands_.us + std::max(us, stream_us_) + store_bytes_ / kStoreBytesPerUs;
    if (parts > 0) {
      us += kPartsUs + static_cast<double>(bytes) / kPartsBytesPerUs +
            kPartUs * static_cast<double>(std::max<int64_t>(splits - 8, 0));
    }
    if (us >= best_->us || bytes > kMostWorkspace) return;
    *best_ = {&tile_, operands_, p_.transposed, splits, whole + parts, bytes, us};
  }

  const Params& p_;
  const Tile& tile_;
  int sm_count_, per_sm_ = 0;
  int64_t slots_ = 0, tiles_;
  double store_bytes_, stream_us_;
  Operands operands_;
  Choice* best_;
};

// TMA counts rows, k and batches in 32 bits, and one grid has all CTAs.
bool fits_int32(const Params& p) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const double tiles = static_cast<double>(ceil_div<int64_t>(p.m, 32)) *
                       static_cast<double>(ceil_div<int64_t>(p.n, 32)) *
                       static_cast<double>(p.batches);
  return p.m < kMost && p.n < kMost && p.k < kMost && p.batches < kMost && tiles < kMost / 16;
}

// Copies of the operands that TMA cannot read. False where they cannot be made.
bool plan_copies(const Problem& problem, const Params& p, Operands* operands) {
  operands->copy_a = !fits_tma(p, p.a, p.m, &BatchDim::a);
  operands->copy_b = !fits_tma(p, p.b, p.n, &BatchDim::b);
  if (!operands->copy_a && !operands->copy_b) return true;
  // make_params may have swapped the problem's operands.
  operands->bytes = copies_bytes(problem, p.transposed ? operands->copy_b : operands->copy_a,
                                 p.transposed ? operands->copy_a : operands->copy_b);
  operands->us = kCopyUs + 2.0 * static_cast<double>(operands->bytes) / kCopyBytesPerUs;
  return operands->bytes >= 0;
}

}  // namespace

bool select(const Problem& problem, const Params& p, const DeviceInfo& device, Config* config,
            double* estimate_us) {
  if (device.capability != 90 || p.batch_dims > 1 || p.k == 0 || !fits_int32(p)) return false;
  const int sm_count = std::max(device.sm_count, 1);
  const Params few = make_few_params(problem);
  Choice best;
  for (const Tile& tile : kTiles) {
    const bool flat = tile.block_m < tile.block_n;
    const Params& q = flat ? few : p;
    if (flat && q.m > kMostRowsOfFlat) continue;
    if (tile.warps == 1 && std::max(q.m, q.n) > kMostRowsOfSmall) continue;
    Search search(q, tile, sm_count, &best);
    Operands operands;
    if (plan_copies(problem, q, &operands)) search.consider(operands);
    if ((operands.copy_a || operands.copy_b) && q.a.unit_stride && q.b.unit_stride) {
      search.consider({.by_threads = true});
    }
  }
  if (best.tile == nullptr) return false;
  const bool copy_a = best.operands.copy_a, copy_b = best.operands.copy_b;
  *estimate_us = best.us;
  *config = {.kernel = Kernel::kFp32Sm90,
             .block_m = best.tile->block_m,
             .block_n = best.tile->block_n,
             .stages = best.tile->warps == 1 ? 2 : 3,
             .splits = static_cast<int>(best.splits),
             .ctas = static_cast<int>(best.ctas),
             .copy_a = best.transposed ? copy_b : copy_a,
             .copy_b = best.transposed ? copy_a : copy_b,
             .workspace_bytes = best.parts_bytes + best.operands.bytes};
  return true;
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
