#include "cuda/gemm/fp32/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"
#include "cuda/gemm/fp32/plan.h"

namespace xgemm::cuda::gemm::fp32 {
namespace {

// A tile, how many CTAs of it an SM holds, and the share of the FP32 cores' rate that one, and that
// all of them reach, where both operands lie along their rows (fitted to an H200's times of the
// shapes that benchmarks/sweep_fp32.py has).
struct Tile {
  int block_m, block_n, stages, ctas_per_sm;
  double efficiency_one, efficiency_full;
};
constexpr Tile kLargeOfChunks = {128, 128, 3, 2, 0.40, 0.755};
constexpr Tile kTiles[] = {
    {128, 128, 3, 2, 0.38, 0.70},
    {64, 64, 4, 6, 0.20, 0.68},
    {16, 128, 4, 6, 0.26, 0.52},
};
constexpr double kSlower = 0.2;  // the share of time that 4-byte copies add

constexpr double kCyclesPerUs = 1980;
constexpr int fmas_per_cycle(int capability) { return capability == 80 ? 64 : 128; }  // of an SM
constexpr double kReadBytesPerUs = 4.0e6;
constexpr double kRoundUs = 2.0;  // filling the ring, the epilogue
constexpr double kLaunchUs = 3.0;
constexpr double kFewUs = 1.0;     // of a stream: the first bytes, and the sum over warps
constexpr double kReduceUs = 8.0;  // the second launch of split-K, and the first one's end
constexpr double kReduceBytesPerUs = 4.0e6;
constexpr double kCopyUs = 3.0, kCopyBytesPerUs = 3.0e6;
constexpr int64_t kMostSplits = 64;  // unless K takes more: a CTA counts its part in 32 bits
constexpr int64_t kLeastKPerSplit = 64, kMostKPerSplit = int64_t{1} << 30;
constexpr int64_t kMostWorkspace = int64_t{1} << 28;

struct Choice {
  Kernel kernel = Kernel::kFp32;
  int block_m = 0, block_n = 0, stages = 0;
  bool copy_a = false, copy_b = false;
  int splits = 1;
  int64_t ctas = 0, workspace_bytes = 0;
  double us = std::numeric_limits<double>::infinity();
};

// Which operands the large tile's fast kernel wants copied, and what that takes.
struct Copies {
  bool a = false, b = false;
  int64_t bytes = 0;
  double us = 0;

  bool any() const { return a || b; }
};

void consider(const Tile& tile, const Copies& copies, int64_t tiles, int64_t parts, const Params& p,
              const DeviceInfo& device, Choice* best) {
  const int sm_count = std::max(device.sm_count, 1);
  const double fmas_per_us = fmas_per_cycle(device.capability) * kCyclesPerUs;
  const int64_t k_per_split = round_up<int64_t>(ceil_div<int64_t>(p.k, parts), kBlockK);
  const int64_t splits = p.k == 0 ? 1 : ceil_div(p.k, k_per_split);  // no part is empty
  const int64_t workspace =
      splits == 1 ? 0 : int64_t{4} * splits * p.batches * p.m * p.partial_stride;
  if (workspace > kMostWorkspace && k_per_split < kMostKPerSplit) return;
  const int64_t per_sm = ceil_div<int64_t>(tiles * splits, sm_count);
  // Rounds of as many CTAs as an SM holds, and a last one of fewer, which are slower together.
  const double one = tile.efficiency_one, full = tile.efficiency_full;
  const int64_t rounds = per_sm / tile.ctas_per_sm, last = per_sm % tile.ctas_per_sm;
  double turns = static_cast<double>(rounds * tile.ctas_per_sm) / full;
  if (last > 0) turns += std::max(static_cast<double>(last) / full, 1 / one);
  // Rows of the tile that are copied 4 bytes at a time.
  const auto slow_rows = [&](const OperandParams& operand, int rows) {
    return copies.any() || operand.access == Access::kRows16 ? 0.0 : rows;
  };
  const double slow =
      (slow_rows(p.a, tile.block_m) + slow_rows(p.b, tile.block_n)) / (tile.block_m + tile.block_n);
  const double fmas = static_cast<double>(tile.block_m) * tile.block_n *
                      static_cast<double>(k_per_split) * turns * (1 + kSlower * slow);
  const double bytes = 4.0 * static_cast<double>(p.k) * static_cast<double>(p.m + p.n) *
                       static_cast<double>(p.batches);
  double us = copies.us + kLaunchUs +
              kRoundUs * static_cast<double>(ceil_div<int64_t>(per_sm, tile.ctas_per_sm));
  us += std::max(fmas / fmas_per_us, bytes / kReadBytesPerUs);
  if (splits > 1) us += kReduceUs + 2.0 * static_cast<double>(workspace) / kReduceBytesPerUs;
  if (us < best->us) {
    *best = {.block_m = tile.block_m,
             .block_n = tile.block_n,
             .stages = tile.stages,
             .copy_a = copies.a,
             .copy_b = copies.b,
             .splits = static_cast<int>(splits),
             .ctas = tiles * splits,
             .workspace_bytes = workspace + copies.bytes,
             .us = us};
  }
}

// Whole K; in two or three parts, which shorten a last round that does not fill the SMs; and in as
// many as give each SM from one CTA to all that it holds.
void consider(const Tile& tile, const Copies& copies, const Params& p, const DeviceInfo& device,
              Choice* best) {
  const int64_t tiles =
      ceil_div<int64_t>(p.m, tile.block_m) * ceil_div<int64_t>(p.n, tile.block_n) * p.batches;
  const int64_t least = std::max<int64_t>(ceil_div(p.k, kMostKPerSplit), 1);
  const int64_t most = std::clamp(p.k / kLeastKPerSplit, least, std::max(least, kMostSplits));
  consider(tile, copies, tiles, least, p, device, best);
  for (int64_t parts = 2; parts <= std::min<int64_t>(3, most); ++parts) {
    if (parts > least) consider(tile, copies, tiles, parts, p, device, best);
  }
  for (int per_sm = 1; per_sm <= tile.ctas_per_sm; ++per_sm) {
    const int64_t parts = std::min(int64_t{std::max(device.sm_count, 1)} * per_sm / tiles, most);
    if (parts > least) consider(tile, copies, tiles, parts, p, device, best);
  }
}

// The tile that TMA feeds. An SM that has room gets two CTAs at once, so that rounds are of as many
// as the SMs hold, whatever the last one has; only where there are no more CTAs than SMs is each
// alone on one. Constants: of times of 17 shapes, each in up to 30 ways to split it, on an H200.
struct TmaTile {
  static constexpr int kBlock = 128, kStages = 3, kCtasPerSm = 2;
  static constexpr double kEfficiency = 0.865, kAlone = 0.72;
  static constexpr double kTileUs = 1.65;   // of an SM: its start and end
  static constexpr double kUneven = 0.055;  // of the time: SMs differ
  static constexpr double kSumUs = 4.0, kSumBytesPerUs = 2.5e6;
  // Where no tile is whole: 1024^3 and 128x4096x4096 took 15 to 25 us longer than by the rest.
  static constexpr double kNoneWholeUs = 20;
  static constexpr int kMostParts = 16, kMostPartsOfLast = 8;  // more were no faster
};

void consider_tma(const Copies& copies, const Params& p, const DeviceInfo& device, Choice* best) {
  using Tile = TmaTile;
  const int64_t sm_count = std::max(device.sm_count, 1), slots = sm_count * Tile::kCtasPerSm;
  const int64_t tiles =
      ceil_div<int64_t>(p.m, Tile::kBlock) * ceil_div<int64_t>(p.n, Tile::kBlock) * p.batches;
  const double rate = fmas_per_cycle(device.capability) * kCyclesPerUs * Tile::kEfficiency;
  // Of `count` tiles of `k` each.
  const auto rounds_us = [&](int64_t count, int64_t k, bool first) {
    const double us = Tile::kBlock * Tile::kBlock * static_cast<double>(k) / rate + Tile::kTileUs;
    if (first && count <= sm_count) return us / Tile::kAlone;
    return us * static_cast<double>(Tile::kCtasPerSm * ceil_div(count, slots));
  };
  const auto consider_split = [&](int64_t whole, int64_t splits, int64_t k_per_split) {
    const int64_t parts = (tiles - whole) * splits;
    const int64_t parts_bytes = splits > 1 ? tma_parts_bytes(parts) : 0;
    double us = 0;
    if (whole > 0) us += rounds_us(whole, p.k, true);
    if (parts > 0) us += rounds_us(parts, k_per_split, whole == 0);
    us = copies.us + kLaunchUs + kRoundUs + us * (1 + Tile::kUneven);
    if (splits > 1) {
      us += Tile::kSumUs + static_cast<double>(parts_bytes) / Tile::kSumBytesPerUs;
      if (whole == 0) us += Tile::kNoneWholeUs;
    }
    if (us >= best->us || parts_bytes > kMostWorkspace) return;
    *best = {.kernel = Kernel::kFp32Sm90,
             .block_m = Tile::kBlock,
             .block_n = Tile::kBlock,
             .stages = Tile::kStages,
             .copy_a = copies.a,
             .copy_b = copies.b,
             .splits = static_cast<int>(splits),
             .ctas = whole + parts,
             .workspace_bytes = copies.bytes + parts_bytes,
             .us = us};
  };
  consider_split(tiles, 1, p.k);
  // The tiles of the last round, of the last two, and all.
  const int64_t rounds = tiles / slots;
  for (const int64_t whole :
       {rounds * slots, std::max<int64_t>(rounds - 1, 0) * slots, int64_t{0}}) {
    if (whole == tiles) continue;
    const int most = whole > 0 ? Tile::kMostPartsOfLast : Tile::kMostParts;
    for (int splits = 2; splits <= most; ++splits) {
      const int64_t k_per_split = round_up<int64_t>(ceil_div<int64_t>(p.k, splits), kTmaBlockK);
      if (k_per_split < kLeastKPerSplit || ceil_div(p.k, k_per_split) != splits) continue;
      consider_split(whole, splits, k_per_split);
    }
  }
}

// False where there is none: more than one dimension of the batch, or too large a copy.
bool plan_copies(const Problem& problem, const Params& p, bool tma, Copies* copies) {
  const auto fits = [&](const OperandParams& operand, int64_t BatchDim::* batch) {
    return tma ? fits_tma(p, operand, batch) : operand.access == Access::kRows16;
  };
  // make_params may have swapped the operands.
  const bool a = fits(p.a, &BatchDim::a), b = fits(p.b, &BatchDim::b);
  copies->a = !(p.transposed ? b : a);
  copies->b = !(p.transposed ? a : b);
  if (!copies->a && !copies->b) return true;
  if (problem.batch_dims > 1) return false;
  for (const bool of_a : {true, false}) {
    if (!(of_a ? copies->a : copies->b)) continue;
    Problem copied = problem;
    const Copy copy = plan_copy(&copied, of_a, nullptr);
    if (copy_tiles(copy.batches, copy.outer, copy.inner) > INT32_MAX) return false;
    const int64_t bytes = copy_bytes(copy);
    copies->bytes += bytes;
    copies->us += kCopyUs + 2.0 * static_cast<double>(bytes) / kCopyBytesPerUs;
  }
  return true;
}

// Few rows of D: a stream over B, in as many CTAs as keep the memory busy.
void consider_few(const Problem& problem, const DeviceInfo& device, Choice* best) {
  const Params p = make_few_params(problem);
  if (p.m > kMostFew) return;
  constexpr int64_t kCtasPerSm = 8, kLeastKOfFew = 512;
  const bool along_k = p.b.access == Access::kAlongK;
  const int block_n = along_k ? 4 : 128;
  const int64_t tiles = ceil_div<int64_t>(p.n, block_n) * p.batches;
  const int64_t least = std::max<int64_t>(ceil_div(p.k, kMostKPerSplit), 1);
  const int64_t most = std::clamp(p.k / kLeastKOfFew, least, std::max(least, kMostSplits));
  const int64_t parts =
      std::clamp(int64_t{std::max(device.sm_count, 1)} * kCtasPerSm / tiles, least, most);
  const int64_t k_per_split = round_up<int64_t>(ceil_div<int64_t>(p.k, parts), kBlockK);
  const int64_t splits = p.k == 0 ? 1 : ceil_div(p.k, k_per_split);
  const int64_t workspace =
      splits == 1 ? 0 : int64_t{4} * splits * p.batches * p.m * p.partial_stride;
  // Vectors of both operands; what is not aligned takes four times the loads.
  const bool vectors = p.b.vectors && (!along_k || (p.a.vectors && p.k % 4 == 0));
  const double bytes = 4.0 * static_cast<double>(p.k) * static_cast<double>(p.m + p.n) *
                       static_cast<double>(p.batches);
  const double us = kLaunchUs + kFewUs +
                    bytes / (vectors ? kReadBytesPerUs : 0.6 * kReadBytesPerUs) +
                    (splits > 1 ? kReduceUs : 0.0);
  if (us < best->us) {
    *best = {.block_m = p.m == 3 ? 4 : static_cast<int>(p.m),
             .block_n = block_n,
             .splits = static_cast<int>(splits),
             .ctas = tiles * splits,
             .workspace_bytes = workspace,
             .us = us};
  }
}

// TMA counts rows, k and batches in 32 bits, and one grid has all CTAs.
bool fits_int32(const Params& p) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const double tiles = static_cast<double>(ceil_div<int64_t>(p.m, TmaTile::kBlock)) *
                       static_cast<double>(ceil_div<int64_t>(p.n, TmaTile::kBlock)) *
                       static_cast<double>(p.batches);
  return p.m < kMost && p.n < kMost && p.k < kMost && p.batches < kMost && tiles < kMost / 16;
}

}  // namespace

Config select(const Problem& problem, const DeviceInfo& device, double* estimate_us) {
  const Params p = make_params(problem);
  Choice best;
  for (const Tile& tile : kTiles) consider(tile, {}, p, device, &best);
  const bool tma = device.capability == 90 && p.batch_dims <= 1 && fits_int32(p);
  if (Copies copies; p.k > 0 && plan_copies(problem, p, tma, &copies)) {
    if (tma) {
      consider_tma(copies, p, device, &best);
    } else {
      consider(kLargeOfChunks, copies, p, device, &best);
    }
  }
  consider_few(problem, device, &best);
  *estimate_us = best.us;
  return {.kernel = best.kernel,
          .block_m = best.block_m,
          .block_n = best.block_n,
          .stages = best.stages,
          .splits = best.splits,
          .ctas = static_cast<int>(std::min<int64_t>(best.ctas, INT32_MAX)),
          .copy_a = best.copy_a,
          .copy_b = best.copy_b,
          .workspace_bytes = best.workspace_bytes,
          .reason = "fp32 products as IEEE has them: the tile that fills the SMs best"};
}

}  // namespace xgemm::cuda::gemm::fp32
