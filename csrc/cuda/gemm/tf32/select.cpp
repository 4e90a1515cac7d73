#include "cuda/gemm/tf32/select.h"

#include <algorithm>
#include <limits>

#include "common/math.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/tf32/plan.h"

namespace xgemm::cuda::gemm::tf32 {
namespace {

constexpr double kLaunchUs = 3.1, kStartUs = 2.5;
constexpr double kCyclesPerUs = 1650;     // the clock that an H200 holds under load
constexpr double kFmasPerCycle = 1024;    // of TF32, one SM
constexpr double kEfficiency = 0.85;      // of the main loop
constexpr double kEpilogueCycles = 5000;  // of a tile
constexpr double kReduceUs = 3.0;         // the second launch of split-K
constexpr double kReduceBytesPerUs = 2.5e6;
constexpr double kCopyUs = 3.5, kCopyBytesPerUs = 3.0e6;
constexpr int64_t kLeastKTilesPerSplit = 4, kMostSplits = 32;
constexpr int64_t kMostWorkspace = int64_t{1} << 28;
constexpr int64_t kMostUnits = INT32_MAX - (1 << 16);  // a CTA counts them in 32 bits

struct Choice {
  bool swapped = false;
  int64_t splits = 1, units = 0, workspace = 0;
  double us = std::numeric_limits<double>::infinity();
};

int64_t tiles_of(const Problem& p, bool swapped) {
  const TileShape tile = tile_shape(p.precision);
  return ceil_div<int64_t>(swapped ? p.n : p.m, tile.x) *
         ceil_div<int64_t>(swapped ? p.m : p.n, tile.y) * (p.batch_dims > 0 ? p.batch[0].size : 1);
}

void consider(const Problem& p, bool swapped, int64_t parts, int sm_count, Choice* best) {
  const TileShape tile = tile_shape(p.precision);
  const int64_t batches = p.batch_dims > 0 ? p.batch[0].size : 1;
  const int64_t k_tiles = ceil_div<int64_t>(p.k, kBlockK);
  const int64_t per_split = ceil_div(k_tiles, parts), splits = ceil_div(k_tiles, per_split);
  const int64_t units = tiles_of(p, swapped) * splits;
  const int64_t partials =
      splits > 1 ? 4 * splits * batches * round_up<int64_t>(p.m, 4) * round_up<int64_t>(p.n, 4) : 0;
  if (partials > kMostWorkspace || units > kMostUnits) return;
  const Copies copied = copies(p, swapped);
  const Matrix x = swapped ? b_of(p) : a_of(p), y = swapped ? a_of(p) : b_of(p);
  if (copied.x && copy_tiles(p, x) > INT32_MAX) return;
  if (copied.y && copy_tiles(p, y) > INT32_MAX) return;
  const int64_t bytes = (copied.x ? copy_bytes(p, x) : 0) + (copied.y ? copy_bytes(p, y) : 0);
  const double products = p.precision == Precision::kTf32x3 ? 3 : 1;
  const double cycles = static_cast<double>(per_split) * kBlockK * tile.x * tile.y * products /
                            (kFmasPerCycle * kEfficiency) +
                        kEpilogueCycles;
  double us = kLaunchUs + kStartUs +
              static_cast<double>(ceil_div<int64_t>(units, sm_count)) * cycles / kCyclesPerUs;
  if (splits > 1) us += kReduceUs + 2.0 * static_cast<double>(partials) / kReduceBytesPerUs;
  if (bytes > 0) us += kCopyUs + 2.0 * static_cast<double>(bytes) / kCopyBytesPerUs;
  if (us < best->us) *best = {swapped, splits, units, partials + bytes, us};
}

// mma.sync: any strides and batches. K is in as many parts as fill the SMs once.
bool select_sm80(const Problem& p, const DeviceInfo& device, Config* config, double* estimate_us) {
  constexpr int kTile = 128;
  constexpr int64_t kMostKPerSplit = int64_t{1} << 30;  // a CTA counts its part in 32 bits
  constexpr int64_t kLeastKPerSplit = 256;
  constexpr double kMmaEfficiency = 0.6;
  constexpr double kMmaCyclesPerUs = 1400, kMmaTurnUs = 3;
  // What data centers have: elsewhere TF32 is no faster than fp32, and three products are slower.
  const int capability = device.capability;
  const bool large = capability == 80 || (capability >= 90 && capability < 120);
  const bool three = p.precision == Precision::kTf32x3;
  if (three && !large) return false;
  const int sm_count = std::max(device.sm_count, 1);
  const fp32::Params shape = fp32::make_params(p);
  const int64_t tiles =
      ceil_div<int64_t>(p.m, kTile) * ceil_div<int64_t>(p.n, kTile) * shape.batches;
  const int64_t least = ceil_div(p.k, kMostKPerSplit);
  const int64_t most = std::max(least, std::min<int64_t>(p.k / kLeastKPerSplit, kMostSplits));
  const int64_t parts = std::clamp<int64_t>(int64_t{sm_count} / tiles, least, most);
  const int64_t k_per_split = round_up<int64_t>(ceil_div(p.k, parts), fp32::kBlockK);
  const int64_t splits = ceil_div(p.k, k_per_split);
  const int64_t partials =
      splits > 1 ? 4 * splits * shape.batches * shape.m * shape.partial_stride : 0;
  if (partials > kMostWorkspace && least == 1) return false;
  // FMAs a cycle, one SM; Hopper and Blackwell keep more for wgmma and tcgen05.
  const double peak = !large ? 128 : capability == 80 ? 512 : 660;
  const double rate = peak * kMmaEfficiency;
  const double fmas = static_cast<double>(k_per_split) * kTile * kTile * (three ? 3 : 1);
  const int64_t turns = ceil_div<int64_t>(tiles * splits, sm_count);
  *estimate_us =
      kLaunchUs + static_cast<double>(turns) * (fmas / rate / kMmaCyclesPerUs) + kMmaTurnUs;
  if (splits > 1)
    *estimate_us += kReduceUs + 2.0 * static_cast<double>(partials) / kReduceBytesPerUs;
  *config = {.kernel = Kernel::kTf32,
             .block_m = kTile,
             .block_n = kTile,
             .stages = 3,
             .splits = static_cast<int>(splits),
             .ctas = static_cast<int>(std::min<int64_t>(tiles * splits, INT32_MAX)),
             .workspace_bytes = partials,
             .reason = "TF32 by mma.sync is estimated to be faster than FP32 cores"};
  return true;
}

}  // namespace

bool select(const Problem& p, const DeviceInfo& device, Config* config, double* estimate_us) {
  if (device.capability < 80 || p.k == 0) return false;
  if (device.capability != 90 || !fits(p)) return select_sm80(p, device, config, estimate_us);
  const int sm_count = std::max(device.sm_count, 1);
  const int64_t k_tiles = ceil_div<int64_t>(p.k, kBlockK);
  const int64_t most = std::clamp<int64_t>(k_tiles / kLeastKTilesPerSplit, 1, kMostSplits);
  Choice best;
  for (const bool swapped : {false, true}) {
    const int64_t tiles = tiles_of(p, swapped);
    consider(p, swapped, 1, sm_count, &best);
    for (const int turns : {1, 2}) {  // K in as many parts as fill the SMs so often
      const int64_t parts = std::min<int64_t>(int64_t{sm_count} * turns / tiles, most);
      if (parts > 1) consider(p, swapped, parts, sm_count, &best);
    }
  }
  if (best.units == 0) return false;
  const TileShape tile = tile_shape(p.precision);
  const Copies copied = copies(p, best.swapped);
  *estimate_us = best.us;
  *config = {.kernel = Kernel::kTf32,
             .block_m = best.swapped ? tile.y : tile.x,
             .block_n = best.swapped ? tile.x : tile.y,
             .stages = p.precision == Precision::kTf32x3 ? 3 : 4,
             .splits = static_cast<int>(best.splits),
             .ctas = static_cast<int>(std::min<int64_t>(best.units, sm_count)),
             .copy_a = best.swapped ? copied.y : copied.x,
             .copy_b = best.swapped ? copied.x : copied.y,
             .workspace_bytes = best.workspace,
             .reason = "TF32 tensor cores are estimated to be faster than FP32 cores"};
  return true;
}

}  // namespace xgemm::cuda::gemm::tf32
