#include "cuda/gemm/fp32/select.h"

#include <algorithm>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/sm90/select.h"
#include "cuda/gemm/split_k.h"

namespace xgemm::cuda::gemm::fp32 {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// A tile, how many CTAs of it an SM holds, and the share of the FP32 cores' rate that one, and that
// all of them reach, where both operands lie along their rows (fitted to an H200's times of the
// shapes that benchmarks/sweep_fp32.py has).
struct Tile {
  int block_m, block_n, stages, ctas_per_sm;
  double efficiency_one, efficiency_full;
};
constexpr Tile kRows16Tile = {128, 128, 3, 2, 0.40, 0.755};
constexpr Tile kTiles[] = {
    {128, 128, 3, 2, 0.38, 0.70},
    {64, 64, 4, 6, 0.20, 0.68},
    {16, 128, 4, 6, 0.26, 0.52},
};
constexpr double kSlower = 0.2;  // the share of time that 4-byte copies add

constexpr int fmas_per_cycle(int capability) { return capability == 80 ? 64 : 128; }  // of an SM
constexpr double kReadBytesPerUs = 4.0e6;
constexpr double kWaveUs = 2.0;  // filling the pipeline, the epilogue
constexpr double kLaunchUs = 5.0;
constexpr double kCopyUs = 3.0, kCopyBytesPerUs = 3.0e6;
constexpr int64_t kMaxSplits = 64, kMinKPerSplit = 64;  // unless K takes more (kMaxKPerSplit)
constexpr int64_t kMaxWorkspace = int64_t{1} << 28;

// Which operands the large tile's fast kernel wants copied, and what that takes. (On Hopper TMA
// feeds it: sm90/select.cpp.)
struct Copies {
  align::Copies plan{};
  double us = 0;
};

struct Candidate {
  const Tile* tile;
  const Params* p;
  const Copies* copies;
  int64_t tiles, splits;  // of D; of K, that it is to have
};

Splits splits_of(const Candidate& c) { return gemm::splits_of(*c.p, c.splits, kBlockK); }

// The kernels of tiles on every GPU.
class Model {
 public:
  using Candidate = fp32::Candidate;

  // `p` are the problem's parameters, `gemv` those with the smaller side first; `copies` those of
  // the large tile's fast kernel, or null.
  Model(const Params& p, const Params& gemv, const Copies* copies, const DeviceInfo& device)
      : p_(p), gemv_(gemv), copies_(copies), device_(device) {}

  template <typename Search>
  void candidates(Search& search) const {
    for (const Tile& tile : kTiles) {
      const bool flat = tile.block_m < tile.block_n;
      of_tile(tile, flat ? gemv_ : p_, kNoCopies, search);
    }
    if (copies_ != nullptr) of_tile(kRows16Tile, p_, *copies_, search);
  }

  Estimate estimate(const Candidate& c, double) const;

  static Choice choice(const Candidate& c) {
    const Splits splits = splits_of(c);
    return {
        .config =
            Config{.block_m = c.tile->block_m,
                   .block_n = c.tile->block_n,
                   .stages = c.tile->stages,
                   .cluster = 1,
                   .splits = static_cast<int>(splits.count),
                   .ctas = static_cast<int>(std::min<int64_t>(c.tiles * splits.count, INT32_MAX))},
        .copies = c.copies->plan,
        .workspace_bytes = splits.workspace_bytes + c.copies->plan.bytes};
  }

 private:
  static constexpr Copies kNoCopies{};

  // Whole K; in two or three parts, which shorten a last wave that does not fill the SMs; and in
  // as many as give each SM from one CTA to all that it holds.
  template <typename Search>
  void of_tile(const Tile& tile, const Params& p, const Copies& copies, Search& search) const {
    const int64_t tiles =
        ceil_div<int64_t>(p.m, tile.block_m) * ceil_div<int64_t>(p.n, tile.block_n) * p.batches;
    const int64_t least = least_splits(p.k);
    const int64_t most = std::clamp(p.k / kMinKPerSplit, least, std::max(least, kMaxSplits));
    const auto consider = [&](int64_t splits) {
      const Candidate c{&tile, &p, &copies, tiles, splits};
      const Splits cut = splits_of(c);
      if (cut.workspace_bytes > kMaxWorkspace && cut.k_each < kMaxKPerSplit) return;
      search.consider(c);
    };
    consider(least);
    for (int64_t splits = 2; splits <= std::min<int64_t>(3, most); ++splits) {
      if (splits > least) consider(splits);
    }
    for (int per_sm = 1; per_sm <= tile.ctas_per_sm; ++per_sm) {
      const int64_t splits =
          std::min(int64_t{std::max(device_.sm_count, 1)} * per_sm / tiles, most);
      if (splits > least) consider(splits);
    }
  }

  const Params &p_, &gemv_;
  const Copies* copies_;
  const DeviceInfo& device_;
};

Estimate Model::estimate(const Candidate& c, double) const {
  const Tile& tile = *c.tile;
  const Params& p = *c.p;
  const auto [k_per_split, splits, workspace] = splits_of(c);
  const int sm_count = std::max(device_.sm_count, 1);
  const auto& gpu = choose::constants_of(device_);
  const double fmas_per_us = fmas_per_cycle(device_.capability) * gpu.fma_cycles_per_us;
  const int64_t per_sm = ceil_div<int64_t>(c.tiles * splits, sm_count);
  // Waves of as many CTAs as an SM holds, and a last one of fewer, which are slower together.
  const double one = tile.efficiency_one, full = tile.efficiency_full;
  const int64_t waves = per_sm / tile.ctas_per_sm, last = per_sm % tile.ctas_per_sm;
  double ctas = static_cast<double>(waves * tile.ctas_per_sm) / full;
  if (last > 0) ctas += std::max(static_cast<double>(last) / full, 1 / one);
  // Rows of the tile that are copied 4 bytes at a time.
  const auto slow_rows = [&](const OperandParams& operand, int rows) {
    return c.copies->plan.any() || operand.access == Access::kRows16 ? 0.0 : rows;
  };
  const double slow =
      (slow_rows(p.a, tile.block_m) + slow_rows(p.b, tile.block_n)) / (tile.block_m + tile.block_n);
  const double fmas = static_cast<double>(tile.block_m) * tile.block_n *
                      static_cast<double>(k_per_split) * ctas * (1 + kSlower * slow);
  const double bytes = 4.0 * static_cast<double>(p.k) * static_cast<double>(p.m + p.n) *
                       static_cast<double>(p.batches);
  const double waves_us =
      kWaveUs * static_cast<double>(ceil_div<int64_t>(per_sm, tile.ctas_per_sm));
  const double fmas_us = fmas / fmas_per_us, dram_us = bytes / (kReadBytesPerUs * gpu.dram_speed);
  const double splits_us = reduce_us(splits, workspace, gpu);
  return {.us = c.copies->us + kLaunchUs + waves_us + std::max(fmas_us, dram_us) + splits_us,
          .parts = {.launch = kLaunchUs,
                    .dram = dram_us,
                    .mma = fmas_us,
                    .exchange = splits_us,
                    .epilogue = waves_us,
                    .copies = c.copies->us}};
}

// False where there is none: more than one dimension of the batch, or too large a copy.
bool plan_copies(const GemmProblem& problem, const Params& p, const DeviceInfo& device,
                 Copies* copies) {
  // make_params may have swapped the operands.
  const bool a = p.a.access == Access::kRows16, b = p.b.access == Access::kRows16;
  const auto order = [](bool suits) {
    return suits ? align::Order::kNone : align::Order::kAcrossK;
  };
  copies->plan = {order(p.transposed ? b : a), order(p.transposed ? a : b)};
  if (!copies->plan.any()) return true;
  if (!place_copies(problem, &copies->plan)) return false;
  copies->us = kCopyUs + 2.0 * static_cast<double>(copies->plan.bytes) /
                             (kCopyBytesPerUs * choose::constants_of(device).dram_speed);
  return true;
}

}  // namespace

std::optional<Scored<Choice>> select(const GemmProblem& problem, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  const Params p = make_params(problem), gemv = make_gemv_params(problem);
  const size_t first = choose::size_of(listing);
  auto best = sm90::select(problem, p, device, listing);
  if (!best) {  // else the FP64 tensor cores are faster
    Copies copies;
    const bool copied =
        p.k > 0 && device.capability != 90 && plan_copies(problem, p, device, &copies);
    best = choose::pick<Choice>(Model(p, gemv, copied ? &copies : nullptr, device), listing);
  }
  best = choose::faster(best, select_gemv(gemv, device, listing));
  choose::adjust(&best, listing, first, [](Choice& choice, Estimate&) {
    choice.reason = "fp32 products as IEEE has them: the tile that fills the SMs best";
  });
  return best;
}

}  // namespace xgemm::cuda::gemm::fp32
