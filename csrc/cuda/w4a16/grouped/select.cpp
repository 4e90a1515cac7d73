#include "cuda/w4a16/grouped/select.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/choose/constants_of.h"

namespace xgemm::cuda::w4a16::grouped {
namespace {

// All constants are fitted to 30 products of Qwen3-30B-A3B's and Mixtral's layers of 1 to 4096
// tokens on an H200 in fp16, in both kernels and in tiles of 16, 32 and 64 rows
// (docs/design/moe.md): wgmma within 9 % (root mean square), mma.sync 13 %; the choice takes 0.7 %
// longer than the best, 8 % at the most.

// Rows of a tile by wgmma, and the SM's cycles for a unit of K of 256 columns.
struct WgmmaTile {
  int rows;
  double unit_cycles;
};
constexpr WgmmaTile kWgmmaTiles[] = {{16, 920}, {32, 1230}, {64, 2050}};

// A tile beside its units: its sums are added and stored. A launch: until all CTAs have operands,
// its end, and its place in the stream. And of the time of a plain read.
constexpr double kTileCycles = 4900, kWgmmaLaunchUs = 6.4, kWgmmaReads = 1.15;

// By mma.sync: a launch, of the time of a plain read, and for a row of a tile and an element of the
// weight.
constexpr double kMmaSyncLaunchUs = 2.2, kMmaSyncReads = 1.44, kMmaSyncUs = 11.7e-9;

// By how much less wgmma's estimate must be: it has not been timed with other sizes.
constexpr double kMargin = 1.07;

// What random ids give.
struct Loads {
  double active;  // experts that have rows
  double slots;

  // A tile of each expert is not full, by half of it where there are several.
  double tiles(int rows) const { return std::max(active, slots / rows + active / 2); }
};

Loads loads_of(const Problem& p) {
  const auto experts = static_cast<double>(p.experts), slots = static_cast<double>(p.slots);
  return {experts * (1 - std::pow(1 - 1 / experts, slots)), slots};
}

double read_us(const Problem& p, const Loads& loads, const choose::DeviceConstants& gpu) {
  return gpu.cold_read_us(loads.active * static_cast<double>(p.weight.layout.bytes()) * 1e-6);
}

double mma_sync_us(const Problem& p, const Loads& loads, const choose::DeviceConstants& gpu) {
  const int rows = mma_sync_rows(loads.slots / loads.active);
  const double weight = static_cast<double>(p.weight.layout.n * p.weight.layout.k);
  // The warp that has most of K is what a tile waits for.
  const int64_t units = p.weight.layout.units(), most = ceil_div<int64_t>(units, kWarps);
  const double uneven = static_cast<double>(most * kWarps) / static_cast<double>(units);
  const double multiply_us = kMmaSyncUs / gpu.all_sms_speed * loads.tiles(rows) * rows * weight;
  const double reads_us = kMmaSyncReads * read_us(p, loads, gpu);
  return kMmaSyncLaunchUs + uneven * std::max(reads_us, multiply_us);
}

double wgmma_us(const Problem& p, const Loads& loads, const WgmmaTile& tile,
                const DeviceInfo& device, const choose::DeviceConstants& gpu) {
  const double units = static_cast<double>(p.weight.layout.units());
  const double tiles = loads.tiles(tile.rows) * static_cast<double>(wgmma_column_blocks(p));
  const double waves = std::ceil(tiles / device.sm_count);
  const double cycles = waves * (units * tile.unit_cycles + kTileCycles);
  const double reads_us = kWgmmaReads * read_us(p, loads, gpu);
  return kWgmmaLaunchUs + std::max(reads_us, cycles / gpu.mma_cycles_per_us);
}

}  // namespace

bool takes_wgmma(const Problem& p, const DeviceInfo& device) {
  constexpr int64_t kMaxTiles = INT32_MAX / 2;
  const int64_t buckets = p.experts + 1;
  return device.capability == 90 && p.dtype != DType::kF32 && !p.fp4 && p.weight.layout.k > 0 &&
         p.experts <= kMaxWgmmaExperts &&
         // Even of bounds that nobody has sorted.
         buckets * ceil_div<int64_t>(p.slots, kWgmmaTiles[0].rows) * wgmma_column_blocks(p) <
             kMaxTiles;
}

int select_wgmma(const Problem& p, const DeviceInfo& device) {
  if (!takes_wgmma(p, device) || p.wanted.kernel == Kernel::kMmaSync) return 0;
  const bool wanted = p.wanted.kernel == Kernel::kWgmma;
  // With zero points the kernels' bits differ, which must not depend on the number of slots.
  if (p.weight.layout.zeros && !wanted) return 0;
  const Loads loads = loads_of(p);
  const choose::DeviceConstants& gpu = choose::constants_of(device);
  double least = wanted ? HUGE_VAL : mma_sync_us(p, loads, gpu) / kMargin;
  int rows = 0;
  for (const WgmmaTile& tile : kWgmmaTiles) {
    if (wanted && p.wanted.block_m > 0 && p.wanted.block_m != tile.rows) continue;
    const double us = wgmma_us(p, loads, tile, device, gpu);
    if (us < least) least = us, rows = tile.rows;
  }
  return rows;
}

}  // namespace xgemm::cuda::w4a16::grouped
