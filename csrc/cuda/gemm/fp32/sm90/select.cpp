#include "cuda/gemm/fp32/sm90/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"
#include "cuda/gemm/fp32/plan.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

// The tile, and how many CTAs of it an SM holds.
constexpr int kBlock = 64, kCtasPerSm = 3;

// A model of rounds of as many CTAs as the SMs hold, and of a last one of fewer. Constants: a fit
// of an H200's times of 330 shapes, each by up to 50 splits and copies; over these the choice takes
// 2.4 % longer than the best.
// The share of the FP64 tensor cores' rate that one, two and three CTAs reach in their main loops,
// and an SM's time for the start and the end of a round.
constexpr double kEfficiency[kCtasPerSm] = {0.78, 0.87, 0.92};
constexpr double kRoundUs = 1.7;
constexpr double kCyclesPerUs = 1980, kFmasPerCycle = 128;  // of an SM
constexpr double kStartUs = 6.3;    // the launch, and until the first tile has come
constexpr double kByCopies = 0.20;  // more, for each operand that threads copy 4 bytes at a time
constexpr double kPartsUs = 1.6, kPartsBytesPerUs = 3.7e6;  // the sum of parts, a second launch
constexpr double kPartUs = 0.08;                            // more, for each part of a tile over 8
constexpr double kCopyUs = 2.6, kCopyBytesPerUs = 4.2e6;    // one launch for both operands

constexpr int64_t kDepth = 32;                        // k of a stage
constexpr int64_t kMostWorkspace = int64_t{1} << 28;  // of parts
constexpr int64_t kMostParts = 12, kMostPartsOfFew = 64;

// How operands get to the kernel.
struct Operands {
  bool copy_a = false, copy_b = false;  // the kernel's
  int64_t bytes = 0;                    // of the copies
  double us = 0, slower = 1;
};

struct Choice {
  Operands operands;
  int64_t splits = 1, ctas = 0, parts_bytes = 0;
  double us = std::numeric_limits<double>::infinity();
};

class Search {
 public:
  Search(const Params& p, int sm_count)
      : p_(p),
        sm_count_(sm_count),
        slots_(int64_t{sm_count} * kCtasPerSm),
        tiles_(ceil_div<int64_t>(p.m, kBlock) * ceil_div<int64_t>(p.n, kBlock) * p.batches) {}

  Choice best;

  void consider(const Operands& operands) {
    operands_ = operands;
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
      for (int per_sm = 1; per_sm <= kCtasPerSm; ++per_sm) {
        const int64_t per_part = ceil_div(
            k_tiles, std::clamp<int64_t>(int64_t{sm_count_} * per_sm / tiles_, 1, kMostPartsOfFew));
        const int64_t splits = ceil_div(k_tiles, per_part);
        if (splits > kMostParts) consider_parts(0, splits);
      }
    }
  }

 private:
  // Of `count` tiles of `k_tiles` stages each.
  double rounds_us(int64_t count, int64_t k_tiles) const {
    const double fmas =
        static_cast<double>(kBlock * kBlock) * static_cast<double>(k_tiles * kDepth);
    const double us = fmas * operands_.slower / (kFmasPerCycle * kCyclesPerUs);
    const auto round_us = [&](int ctas) {
      return ctas == 0 ? 0.0 : ctas * us / kEfficiency[ctas - 1] + kRoundUs;
    };
    const auto last = static_cast<int>(ceil_div<int64_t>(count % slots_, sm_count_));
    return static_cast<double>(count / slots_) * round_us(kCtasPerSm) + round_us(last);
  }

  void consider_parts(int64_t whole, int64_t splits) {
    const int64_t k_tiles = ceil_div<int64_t>(p_.k, kDepth);
    const int64_t parts = splits > 1 ? (tiles_ - whole) * splits : 0;
    const int64_t bytes = parts * kBlock * kBlock * 4;
    double us = kStartUs + operands_.us;
    if (whole > 0) us += rounds_us(whole, k_tiles);
    if (parts > 0) {
      us += rounds_us(parts, ceil_div(k_tiles, splits)) + kPartsUs +
            static_cast<double>(bytes) / kPartsBytesPerUs +
            kPartUs * static_cast<double>(std::max<int64_t>(splits - 8, 0));
    }
    if (us >= best.us || bytes > kMostWorkspace) return;
    best = {operands_, splits, whole + parts, bytes, us};
  }

  const Params& p_;
  int sm_count_;
  int64_t slots_, tiles_;
  Operands operands_;
};

// TMA counts rows, k and batches in 32 bits, and one grid has all CTAs.
bool fits_int32(const Params& p) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const double tiles = static_cast<double>(ceil_div<int64_t>(p.m, 64)) *
                       static_cast<double>(ceil_div<int64_t>(p.n, 64)) *
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
  Search search(p, std::max(device.sm_count, 1));
  Operands operands;
  if (plan_copies(problem, p, &operands)) search.consider(operands);
  if ((operands.copy_a || operands.copy_b) && p.a.unit_stride && p.b.unit_stride) {
    const int slow = (p.a.vectors ? 0 : 1) + (p.b.vectors ? 0 : 1);
    search.consider({.slower = 1 + kByCopies * slow});
  }
  const Choice& best = search.best;
  if (best.ctas == 0) return false;
  const bool copy_a = best.operands.copy_a, copy_b = best.operands.copy_b;
  *estimate_us = best.us;
  *config = {.kernel = Kernel::kFp32Sm90,
             .block_m = kBlock,
             .block_n = kBlock,
             .stages = 3,
             .splits = static_cast<int>(best.splits),
             .ctas = static_cast<int>(best.ctas),
             .copy_a = p.transposed ? copy_b : copy_a,
             .copy_b = p.transposed ? copy_a : copy_b,
             .workspace_bytes = best.parts_bytes + best.operands.bytes};
  return true;
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
