#include "cuda/gemm/sm90/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"
#include "cuda/gemm/sm90/tiles.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90 {
namespace {

// A tile, and the share of the tensor cores' rate that its main loop reaches. Rounded from times on
// an H200; the sweep (benchmarks/sweep_mul.py) has not fitted them yet.
struct Tile {
  int block_n, stages, cluster;
  double efficiency;
};
constexpr double efficiency_of(int block_n, int cluster) {
  if (block_n == 256) return cluster == 2 ? 1.0 : 0.97;
  if (block_n == 128) return cluster == 2 ? 0.94 : 0.86;
  return block_n == 160 ? 0.98 : 0.985;
}
#define XGEMM_SM90_TILE(BLOCK_N, STAGES, CLUSTER) \
  {BLOCK_N, STAGES, CLUSTER, efficiency_of(BLOCK_N, CLUSTER)},
constexpr Tile kTiles[] = {XGEMM_SM90_TILES(XGEMM_SM90_TILE)};
#undef XGEMM_SM90_TILE

constexpr int kBlockM = 128, kBlockK = 64;
// Of a launch, and of a CTA until its first operands are there.
constexpr double kLaunchUs = 3.1, kStartUs = 2.4;
constexpr double kCyclesPerUs = 1650;         // the clock that an H200 holds under load
constexpr double kTakeCycles = 350;           // between two tiles
constexpr double kStoreCyclesPerColumn = 10;  // of the last tile, which nothing hides
// Where memory is what counts: its rate, the time until it is reached, and what is read again.
constexpr double kMemoryBytesPerUs = 4.0e6, kRampUs = 1.5, kRampBytes = 16e6;
constexpr double kL2UsPerByte = 0.025e-6;

double memory_bytes(const Problem& p) {
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n);
  const auto k = static_cast<double>(p.k);
  double a = m * k, b = k * n, d = m * n;
  for (int i = 0; i < p.batch_dims; ++i) {
    const auto size = static_cast<double>(p.batch[i].size);
    if (p.batch[i].a != 0) a *= size;
    if (p.batch[i].b != 0) b *= size;
    d *= size;
  }
  return 2 * (a + b + d);
}

}  // namespace

Config select(const Problem& p, const DeviceInfo& device, double* estimate_us) {
  int64_t batch = 1;
  for (int i = 0; i < p.batch_dims; ++i) batch *= p.batch[i].size;
  const auto k_tiles = static_cast<double>(ceil_div<int64_t>(p.k, kBlockK));
  const bool whole_boxes = !b_k_major(p);
  const double memory = memory_bytes(p);
  Config best;
  *estimate_us = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    if (whole_boxes && tile.block_n % 64 != 0) continue;
    const int64_t clusters = ceil_div<int64_t>(p.m, int64_t{kBlockM} * tile.cluster) *
                             ceil_div<int64_t>(p.n, tile.block_n) * batch;
    const int64_t turns = ceil_div<int64_t>(clusters, device.sm_count / tile.cluster);
    // m64nNk16 takes N / 2 cycles, of which a tile has 2 x 4 for each k-tile.
    const double cycles_a_turn = k_tiles * 4 * tile.block_n / tile.efficiency + kTakeCycles;
    const double multiply_us = static_cast<double>(turns) * cycles_a_turn / kCyclesPerUs;
    const double loaded = static_cast<double>(clusters * tile.cluster) * k_tiles * kBlockK * 2 *
                          (kBlockM + tile.block_n / tile.cluster);
    const double memory_us =
        memory / kMemoryBytesPerUs + std::max(0.0, loaded - memory) * kL2UsPerByte;
    const double us = kLaunchUs + kStartUs + kRampUs * std::min(1.0, memory / kRampBytes) +
                      std::max(multiply_us, memory_us) +
                      kStoreCyclesPerColumn * tile.block_n / kCyclesPerUs;
    if (us >= *estimate_us) continue;
    *estimate_us = us;
    best = {.kernel = Kernel::kSm90,
            .block_m = kBlockM,
            .block_n = tile.block_n,
            .stages = tile.stages,
            .cluster = tile.cluster,
            // As few as need the same number of turns: less power, the same time.
            .ctas = static_cast<int>(ceil_div(clusters, turns)) * tile.cluster,
            .tma_store = d_fits_tma(p),
            .reason = "fewest turns over the SMs, weighted by the tile's rate"};
  }
  return best;
}

}  // namespace xgemm::cuda::gemm::sm90
