#include "cuda/gemm/sm80/select.h"

#include <algorithm>
#include <limits>

#include "common/candidate_log.h"
#include "common/math.h"
#include "cuda/gemm/sm80/plan.h"

namespace xgemm::cuda::gemm::sm80 {
namespace {

// A tile, how many CTAs of it an SM holds, and the share of mma.sync's rate that one, and that all
// of them reach. With the times below fitted to 919 products on an H200 from a cold L2 cache, of
// 8-aligned extents from 64 to 28672: 457 in all tiles and in 1 to 32 parts (more follow the same
// rule, not measured), where the choice takes 1.1 % longer than the best (before: 1.6 %), at most
// 36 %, the others as two fits before this one would take them. Those of the general tiles are
// estimates.
struct Tile {
  int block_m, block_n, stages, ctas_per_sm;
  double efficiency_one, efficiency_full;
  double round_us;  // filling the ring, the epilogue
};
constexpr Tile kLarge{128, 256, 3, 1, 0.865, 0.865, 6.43};
constexpr Tile kMedium{128, 128, 4, 2, 0.601, 0.769, 6.38};
constexpr Tile kGeneral{128, 128, 4, 1, 0.17, 0.17, 2.1};
constexpr Tile kSmall{64, 64, 4, 3, 0.207, 0.316, 1.90};
constexpr Tile kSmallGeneral{64, 64, 4, 2, 0.07, 0.10, 2.1};

constexpr double kSmFlopsPerMicrosecond = 4.9e6;  // mma.sync, one SM
constexpr double kLaunchMicroseconds = 4.4;       // and until a CTA's first operands are there
constexpr double kReduceMicroseconds = 2.36;      // the second launch of split-K
constexpr double kReduceBytesPerMicrosecond = 6.0e6;
constexpr int kSplits[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
constexpr int64_t kMinKPerSplit = 128;
constexpr int64_t kMaxKPerSplit = int64_t{1} << 30;  // a CTA counts its part in 32 bits
constexpr int64_t kMaxWorkspace = int64_t{1} << 28;

bool has_large_shared_memory(int capability) {
  return capability == 80 || capability == 87 || (capability >= 90 && capability < 120);
}

struct Choice {
  const Tile* tile = nullptr;
  int splits = 1;
  int64_t ctas = 0, workspace_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();
};

bool is_aligned(const Params& p) {
  return p.a.access == Access::kWhole16 && p.b.access == Access::kWhole16;
}

Config config_of(const Choice& choice, const Params& p, int sm_count) {
  // Where an SM holds one CTA, it takes a tile after another: the next one's copies start before
  // the last one is stored. Two CTAs do so for each other, and share the tiles out more evenly if
  // they are not dealt beforehand: 3 to 5 % at 8192^3 on an H200.
  const int64_t most_ctas = choice.tile == &kLarge ? sm_count : std::numeric_limits<int32_t>::max();
  return {.kernel = Kernel::kSm80,
          .block_m = choice.tile->block_m,
          .block_n = choice.tile->block_n,
          .stages = choice.tile->stages,
          .splits = choice.splits,
          .ctas = static_cast<int>(std::min(choice.ctas, most_ctas)),
          .workspace_bytes = choice.workspace_bytes,
          .reason = is_aligned(p) ? "mma.sync: 16-byte aligned operands"
                                  : "mma.sync: an operand is not 16-byte aligned"};
}

// Parts that K must be split into.
int64_t least_parts(const Params& p) { return std::max<int64_t>(ceil_div(p.k, kMaxKPerSplit), 1); }

void consider(const Tile& tile, int64_t tiles, int64_t parts, const Params& p, int sm_count,
              Choice* best) {
  const int64_t k_per_split = round_up<int64_t>(ceil_div<int64_t>(p.k, parts), kBlockK);
  const int64_t splits = p.k == 0 ? 1 : ceil_div(p.k, k_per_split);  // no part is empty
  const int64_t workspace =
      splits == 1 ? 0 : int64_t{4} * splits * p.batches * p.m * p.partial_stride;
  if (workspace > kMaxWorkspace && parts > least_parts(p)) return;
  const int64_t per_sm = ceil_div<int64_t>(tiles * splits, sm_count);
  // The last CTA of an SM may have it to itself.
  const int64_t alone = per_sm % tile.ctas_per_sm == 1 ? 1 : 0;
  const double cta_us =
      2.0 * tile.block_m * tile.block_n * static_cast<double>(k_per_split) / kSmFlopsPerMicrosecond;
  double cost = static_cast<double>(per_sm - alone) * cta_us / tile.efficiency_full +
                static_cast<double>(alone) * cta_us / tile.efficiency_one +
                static_cast<double>(ceil_div<int64_t>(per_sm, tile.ctas_per_sm)) * tile.round_us;
  if (splits > 1) {
    cost += kReduceMicroseconds + 2.0 * static_cast<double>(workspace) / kReduceBytesPerMicrosecond;
  }
  const Choice choice{&tile, static_cast<int>(splits), tiles * splits, workspace, cost};
  if (auto* log = CandidateLog<Config>::active()) {
    log->add(config_of(choice, p, sm_count), kLaunchMicroseconds + cost);
  }
  if (cost < best->cost) *best = choice;
}

// Whole K, and K in as many parts as leave at most a quarter more CTAs than the SMs hold at a time.
void consider(const Tile& tile, const Params& p, int sm_count, Choice* best) {
  const int64_t tiles =
      ceil_div<int64_t>(p.m, tile.block_m) * ceil_div<int64_t>(p.n, tile.block_n) * p.batches;
  const int64_t least = least_parts(p);
  consider(tile, tiles, least, p, sm_count, best);
  for (const int64_t parts : kSplits) {
    if (tiles * parts * 4 > int64_t{5} * sm_count * tile.ctas_per_sm) break;
    if (parts * kMinKPerSplit > p.k) break;
    if (parts > least) consider(tile, tiles, parts, p, sm_count, best);
  }
}

}  // namespace

Config select(const GemmProblem& problem, const DeviceInfo& device, double* estimate_us) {
  const Params p = make_params(problem);
  const bool aligned = is_aligned(p);
  const int sm_count = std::max(device.sm_count, 1);
  Choice best;
  consider(aligned ? kSmall : kSmallGeneral, p, sm_count, &best);
  consider(aligned ? kMedium : kGeneral, p, sm_count, &best);
  if (aligned && has_large_shared_memory(device.capability)) consider(kLarge, p, sm_count, &best);
  *estimate_us = kLaunchMicroseconds + best.cost;
  return config_of(best, p, sm_count);
}

}  // namespace xgemm::cuda::gemm::sm80
