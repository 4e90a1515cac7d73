#include "cuda/gemm/sm80/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/sm80/plan.h"
#include "cuda/gemm/split_k.h"

namespace xgemm::cuda::gemm::sm80 {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// A tile, how many CTAs of it an SM holds, and the share of mma.sync's rate that one, and that all
// of them reach. With the times below fitted to 919 products on an H200 from a cold L2 cache, of
// 8-aligned extents from 64 to 28672: 457 in all tiles and in 1 to 32 parts (more follow the same
// rule, not measured), where the choice takes 1.1 % longer than the best (before: 1.6 %), at most
// 36 %, the others as two fits before this one would take them. Those of the general tiles are
// estimates.
struct Tile {
  int block_m, block_n, stages, ctas_per_sm;
  double efficiency_one, efficiency_full;
  double wave_us;  // filling the pipeline, the epilogue
};
constexpr Tile k128x256{128, 256, 3, 1, 0.865, 0.865, 6.43};
constexpr Tile k128x128{128, 128, 4, 2, 0.601, 0.769, 6.38};
constexpr Tile k128x128General{128, 128, 4, 1, 0.17, 0.17, 2.1};
constexpr Tile k64x64{64, 64, 4, 3, 0.207, 0.316, 1.90};
constexpr Tile k64x64General{64, 64, 4, 2, 0.07, 0.10, 2.1};

constexpr double kSmFlopsPerUs = 4.9e6;  // mma.sync, one SM
constexpr double kLaunchUs = 4.4;        // and until a CTA's first operands are there
constexpr double kBytesPerUs = 4.8e6;    // of an H200's memory, by its data sheet
constexpr double kReduceUs = 2.36;       // the second launch of split-K
constexpr double kReduceBytesPerUs = 6.0e6;
constexpr int kSplits[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
constexpr int64_t kMinKPerSplit = 128;
constexpr int64_t kMaxWorkspace = int64_t{1} << 28;

bool has_large_shared_memory(int capability) {
  return capability == 80 || capability == 87 || (capability >= 90 && capability < 120);
}

struct Candidate {
  const Tile* tile;
  int64_t tiles, splits;  // of D; of K, that it is to have
};

bool is_aligned(const Params& p) {
  return p.a.access == Access::kWhole16 && p.b.access == Access::kWhole16;
}

class Model {
 public:
  using Candidate = sm80::Candidate;

  Model(const Params& params, const DeviceInfo& device)
      : p_(params),
        aligned_(is_aligned(params)),
        large_(aligned_ && has_large_shared_memory(device.capability)),
        sm_count_(std::max(device.sm_count, 1)),
        mma_speed_(choose::constants_of(device).mma_sync_speed),
        dram_speed_(choose::constants_of(device).dram_speed),
        // Of operands that all of a batch may share.
        dram_us_(2.0 * static_cast<double>(params.k) * static_cast<double>(params.m + params.n) /
                 (kBytesPerUs * dram_speed_)) {}

  template <typename Search>
  void candidates(Search& search) const {
    of_tile(aligned_ ? k64x64 : k64x64General, search);
    of_tile(aligned_ ? k128x128 : k128x128General, search);
    if (large_) of_tile(k128x256, search);
  }

  Estimate estimate(const Candidate& c, double) const {
    const Tile& tile = *c.tile;
    const auto [k_each, splits, workspace] = splits_of(p_, c.splits, kBlockK);
    const int64_t per_sm = ceil_div<int64_t>(c.tiles * splits, sm_count_);
    // The last CTA of an SM may have it to itself.
    const int64_t alone = per_sm % tile.ctas_per_sm == 1 ? 1 : 0;
    const double cta_us = 2.0 * tile.block_m * tile.block_n * static_cast<double>(k_each) /
                          (kSmFlopsPerUs * mma_speed_);
    const double waves_us =
        static_cast<double>(ceil_div<int64_t>(per_sm, tile.ctas_per_sm)) * tile.wave_us;
    const double mma_us = static_cast<double>(per_sm - alone) * cta_us / tile.efficiency_full +
                          static_cast<double>(alone) * cta_us / tile.efficiency_one;
    const double reduce_us = splits > 1 ? kReduceUs + 2.0 * static_cast<double>(workspace) /
                                                          (kReduceBytesPerUs * dram_speed_)
                                        : 0;
    // The times that the constants are fitted to lie above it; other GPUs have less memory for
    // their tensor cores.
    const double busy_us = std::max(mma_us + waves_us, dram_us_);
    return {.us = kLaunchUs + (busy_us + reduce_us),
            .parts = {.launch = kLaunchUs,
                      .dram = dram_us_,
                      .mma = mma_us,
                      .exchange = reduce_us,
                      .epilogue = waves_us}};
  }

  Choice choice(const Candidate& c) const {
    // Where an SM holds one CTA, it takes a tile after another: the next one's copies start before
    // the last one is stored. Two CTAs do so for each other, and share the tiles out more evenly if
    // they are not dealt beforehand: 3 to 5 % at 8192^3 on an H200.
    const int64_t most_ctas = c.tile == &k128x256 ? sm_count_ : std::numeric_limits<int32_t>::max();
    const Splits splits = splits_of(p_, c.splits, kBlockK);
    return {.config = Config{.block_m = c.tile->block_m,
                             .block_n = c.tile->block_n,
                             .stages = c.tile->stages,
                             .splits = static_cast<int>(splits.count),
                             .ctas = static_cast<int>(std::min(c.tiles * splits.count, most_ctas))},
            .workspace_bytes = splits.workspace_bytes,
            .reason = aligned_ ? "mma.sync: 16-byte aligned operands"
                               : "mma.sync: an operand is not 16-byte aligned"};
  }

 private:
  // Whole K, and K in as many parts as leave at most a quarter more CTAs than the SMs hold at a
  // time.
  template <typename Search>
  void of_tile(const Tile& tile, Search& search) const {
    const int64_t tiles =
        ceil_div<int64_t>(p_.m, tile.block_m) * ceil_div<int64_t>(p_.n, tile.block_n) * p_.batches;
    const int64_t least = least_splits(p_.k);
    of_splits({&tile, tiles, least}, search);
    for (const int64_t splits : kSplits) {
      if (tiles * splits * 4 > int64_t{5} * sm_count_ * tile.ctas_per_sm) break;
      if (splits * kMinKPerSplit > p_.k) break;
      if (splits > least) of_splits({&tile, tiles, splits}, search);
    }
  }

  template <typename Search>
  void of_splits(const Candidate& c, Search& search) const {
    const bool too_much = splits_of(p_, c.splits, kBlockK).workspace_bytes > kMaxWorkspace;
    if (!too_much || c.splits <= least_splits(p_.k)) search.consider(c);
  }

  const Params& p_;
  bool aligned_, large_;
  int sm_count_;
  double mma_speed_, dram_speed_, dram_us_;
};

}  // namespace

std::optional<Scored<Choice>> select(const GemmProblem& problem, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  const Params p = make_params(problem);
  return choose::pick<Choice>(Model(p, device), listing);
}

}  // namespace xgemm::cuda::gemm::sm80
