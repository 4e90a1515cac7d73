#include "cuda/gemm/fp32/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"
#include "cuda/gemm/fp32/plan.h"

namespace xgemm::cuda::gemm::fp32 {
namespace {

// A tile, how many CTAs of it an SM holds, and the share of the FP32 cores' rate that one, and that
// all of them reach (estimates for an H200).
struct Tile {
  int block_m, block_n, stages, ctas_per_sm;
  double efficiency_one, efficiency_full;
};
constexpr Tile kTiles[] = {
    {128, 128, 3, 2, 0.80, 0.89},
    {64, 64, 4, 6, 0.30, 0.72},
    {16, 128, 4, 6, 0.14, 0.45},
};

constexpr double kCyclesPerUs = 1980;
constexpr int fmas_per_cycle(int capability) { return capability == 80 ? 64 : 128; }  // of an SM
constexpr double kReadBytesPerUs = 4.0e6;
constexpr double kRoundUs = 2.0;  // filling the ring, the epilogue
constexpr double kLaunchUs = 3.0;
constexpr double kReduceUs = 3.0;  // the second launch of split-K
constexpr double kReduceBytesPerUs = 2.5e6;
constexpr int64_t kMostSplits = 64;  // unless K takes more: a CTA counts its part in 32 bits
constexpr int64_t kLeastKPerSplit = 64, kMostKPerSplit = int64_t{1} << 30;
constexpr int64_t kMostWorkspace = int64_t{1} << 28;

struct Choice {
  const Tile* tile = nullptr;
  int splits = 1;
  int64_t ctas = 0, workspace_bytes = 0;
  double us = std::numeric_limits<double>::infinity();
};

void consider(const Tile& tile, int64_t tiles, int64_t parts, const Params& p,
              const DeviceInfo& device, Choice* best) {
  const int sm_count = std::max(device.sm_count, 1);
  const double fmas_per_us = fmas_per_cycle(device.capability) * kCyclesPerUs;
  const int64_t k_per_split = round_up<int64_t>(ceil_div<int64_t>(p.k, parts), kBlockK);
  const int64_t splits = p.k == 0 ? 1 : ceil_div(p.k, k_per_split);  // no part is empty
  const int64_t workspace =
      splits == 1 ? 0 : int64_t{4} * splits * p.batches * p.m * p.partial_stride;
  if (workspace > kMostWorkspace && k_per_split < kMostKPerSplit) return;
  const int64_t per_sm = ceil_div<int64_t>(tiles * splits, sm_count);
  const double efficiency =
      std::min(tile.efficiency_full,
               tile.efficiency_one * static_cast<double>(std::min<int64_t>(per_sm, 8)));
  const double fmas = static_cast<double>(tile.block_m) * tile.block_n *
                      static_cast<double>(k_per_split) * static_cast<double>(per_sm);
  const double bytes = 4.0 * static_cast<double>(p.k) * static_cast<double>(p.m + p.n) *
                       static_cast<double>(p.batches);
  double us =
      kLaunchUs + kRoundUs * static_cast<double>(ceil_div<int64_t>(per_sm, tile.ctas_per_sm));
  us += std::max(fmas / (fmas_per_us * efficiency), bytes / kReadBytesPerUs);
  if (splits > 1) us += kReduceUs + 2.0 * static_cast<double>(workspace) / kReduceBytesPerUs;
  if (us < best->us) {
    *best = {&tile, static_cast<int>(splits), tiles * splits, workspace, us};
  }
}

// Whole K, and K in as many parts as give each SM from one CTA to all that it holds.
void consider(const Tile& tile, const Params& p, const DeviceInfo& device, Choice* best) {
  const int64_t tiles =
      ceil_div<int64_t>(p.m, tile.block_m) * ceil_div<int64_t>(p.n, tile.block_n) * p.batches;
  const int64_t least = std::max<int64_t>(ceil_div(p.k, kMostKPerSplit), 1);
  const int64_t most = std::clamp(p.k / kLeastKPerSplit, least, std::max(least, kMostSplits));
  consider(tile, tiles, least, p, device, best);
  for (int per_sm = 1; per_sm <= tile.ctas_per_sm; ++per_sm) {
    const int64_t parts = std::min(int64_t{std::max(device.sm_count, 1)} * per_sm / tiles, most);
    if (parts > least) consider(tile, tiles, parts, p, device, best);
  }
}

}  // namespace

Config select(const Problem& problem, const DeviceInfo& device, double* estimate_us) {
  const Params p = make_params(problem);
  Choice best;
  for (const Tile& tile : kTiles) consider(tile, p, device, &best);
  *estimate_us = best.us;
  return {.kernel = Kernel::kFp32,
          .block_m = best.tile->block_m,
          .block_n = best.tile->block_n,
          .stages = best.tile->stages,
          .splits = best.splits,
          .ctas = static_cast<int>(std::min<int64_t>(best.ctas, INT32_MAX)),
          .workspace_bytes = best.workspace_bytes,
          .reason = "fp32 products as IEEE has them: the tile that fills the SMs best"};
}

}  // namespace xgemm::cuda::gemm::fp32
