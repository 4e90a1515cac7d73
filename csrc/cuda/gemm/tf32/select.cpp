#include "cuda/gemm/tf32/select.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "common/candidate_log.h"
#include "common/math.h"
#include "cuda/gemm/fp32/copy_plan.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/tf32/plan.h"
#include "cuda/gemm/tf32/tiles.h"

namespace xgemm::cuda::gemm::tf32 {
namespace {

// A tile, the CTAs of a cluster, and the share of the tensor cores' rate that its main loop
// reaches.
struct Tile {
  TileShape shape;
  int cluster;
  double efficiency;
};
#define XGEMM_TILE(X, Y, CLUSTER, PERCENT) Tile{{X, Y}, CLUSTER, 0.01 * PERCENT},
constexpr Tile kTilesOfThree[] = {XGEMM_TF32X3_TILES(XGEMM_TILE)};
constexpr Tile kTilesOfOne[] = {XGEMM_TF32_TILES(XGEMM_TILE)};
#undef XGEMM_TILE

// A fit of an H200's times of 198 shapes, 4,324 tiles and splits of them, of which kLinesPerCycle
// was moved for large unaligned shapes: over these the choice takes about 2.3 % (one product)
// longer than the best; with three products, 0.2 % before that.
constexpr double kLaunchUs = 3.1, kStartUs = 1.1;
constexpr double kCyclesPerUs = 1650;   // the clock that an H200 holds under load
constexpr double kFmasPerCycle = 1024;  // of TF32, one SM
constexpr double kTileUs = 1.1;         // filling the ring
constexpr double kElementUs = 9.4e-5;   // the epilogue, for each element of a tile
constexpr double kWrongWayUs = 1.7;     // more, where D is contiguous along Y
// The epilogue for each element of a D that is not aligned, contiguous along X and along Y: these
// are stored one by one. (Fitted to 1,254 products of which the choice was another without it.)
constexpr double kLooseElementUs = 2.4e-4, kLooseWrongWayUs = 4.5e-4;
constexpr double kReadBytesPerUs = 2.2e6;
constexpr double kOverlapLost = 0.14;  // of the shorter of products and reads
// L2 gives an SM so many lines of 128 bytes a cycle; an operand whose contiguous runs do not all
// begin with a line takes two for each of a box's rows (3617x2784x4204 takes 280 us by clusters,
// which share operands, and 355 by the same tile without).
constexpr double kLinesPerCycle = 0.6;
constexpr double kSectorsLines = 1.5;  // for runs that begin with a sector of 32 bytes
constexpr double kReduceUs = 3.5;      // the second launch of split-K
constexpr double kReduceBytesPerUs = 3.5e6;
constexpr double kCopyUs = 4.3, kCopyBytesPerUs = 3.8e6;
constexpr int64_t kMinKTilesPerSplit = 4, kMaxSplits = 32;
constexpr int64_t kMaxWorkspace = int64_t{1} << 28;
constexpr int64_t kMaxUnits = INT32_MAX - (1 << 16);  // a CTA counts them in 32 bits

struct Choice {
  const Tile* tile = nullptr;
  bool swapped = false;
  int64_t splits = 1, units = 0, workspace = 0;
  double us = std::numeric_limits<double>::infinity();
};

// Lines of L2 for 32 k of a row, or 32 rows of a k.
double lines(const Matrix& matrix, bool copied) {
  const int64_t stride = matrix.fits_along_k() ? matrix.row_stride : matrix.k_stride;
  if (copied || stride % 32 == 0) return 1;
  return stride % 8 == 0 ? kSectorsLines : 2;
}

// Of a cluster's CTAs together.
int64_t tiles_of(const GemmProblem& p, const Tile& tile, bool swapped) {
  return ceil_div<int64_t>(swapped ? p.n : p.m, tile.shape.x * tile.cluster) *
         ceil_div<int64_t>(swapped ? p.m : p.n, tile.shape.y) * batches_of(p);
}

// What D is contiguous along: N, else M.
bool d_along_n(const GemmProblem& p) {
  return std::abs(p.d_col_stride) <= std::abs(p.d_row_stride);
}

// Whether all of what is contiguous begins with a multiple of 16 bytes.
bool d_is_aligned(const GemmProblem& p) {
  const int64_t step = d_along_n(p) ? p.d_row_stride : p.d_col_stride;
  const int64_t batch_step = p.batch_dims > 0 ? p.batch[0].d : 0;
  return (step | batch_step) % 4 == 0 && reinterpret_cast<uintptr_t>(p.d) % 16 == 0;
}

Config config_of(const GemmProblem& p, const Choice& choice, int sm_count) {
  const TileShape tile = choice.tile->shape;
  const int cluster = choice.tile->cluster;
  const Copies copied = copies(p, choice.swapped);
  const int64_t most = sm_count / cluster;
  return {.kernel = choice.swapped ? Kernel::kTf32Swapped : Kernel::kTf32,
          .block_m = choice.swapped ? tile.y : tile.x,
          .block_n = choice.swapped ? tile.x : tile.y,
          .stages = stages(p.precision == Precision::kTf32x3, tile),
          .cluster = cluster,
          .splits = static_cast<int>(choice.splits),
          .ctas = static_cast<int>(std::min(choice.units, most)) * cluster,
          .copy_a = choice.swapped ? copied.y : copied.x,
          .copy_b = choice.swapped ? copied.x : copied.y,
          .workspace_bytes = choice.workspace,
          .reason = "TF32 tensor cores are estimated to be faster than FP32 cores"};
}

void consider(const GemmProblem& p, const Tile& tile, bool swapped, int64_t parts, int sm_count,
              Choice* best) {
  const int64_t batches = batches_of(p);
  const int64_t k_tiles = ceil_div<int64_t>(p.k, kBlockK);
  const int64_t per_split = ceil_div(k_tiles, parts), splits = ceil_div(k_tiles, per_split);
  const int64_t units = tiles_of(p, tile, swapped) * splits;
  const int64_t partials =
      splits > 1 ? 4 * splits * batches * round_up<int64_t>(p.m, 4) * round_up<int64_t>(p.n, 4) : 0;
  if (partials > kMaxWorkspace || units > kMaxUnits / tile.cluster) return;
  const Copies copied = copies(p, swapped);
  const Matrix x = swapped ? b_of(p) : a_of(p), y = swapped ? a_of(p) : b_of(p);
  int64_t bytes = 0;
  for (const Matrix* matrix : {copied.x ? &x : nullptr, copied.y ? &y : nullptr}) {
    if (matrix == nullptr) continue;
    const int64_t matrices = copied_batches(p, *matrix);
    if (fp32::copy_tiles(matrices, matrix->rows, p.k) > INT32_MAX) return;
    bytes += fp32::copy_bytes(matrices, matrix->rows, p.k);
  }
  const double products = p.precision == Precision::kTf32x3 ? 3 : 1;
  const double fma_cycles =
      products * kBlockK * tile.shape.x * tile.shape.y / (kFmasPerCycle * tile.efficiency);
  const double line_cycles =
      (tile.shape.x * lines(x, copied.x) + tile.shape.y * lines(y, copied.y) / tile.cluster) /
      kLinesPerCycle;
  const double k_us =
      static_cast<double>(per_split) * std::max(fma_cycles, line_cycles) / kCyclesPerUs;
  // Eight lanes of a store have rows of X, so X should be what D is contiguous along.
  const bool along_x = d_along_n(p) == swapped;
  double store_us = kElementUs * tile.shape.x * tile.shape.y + (along_x ? 0.0 : kWrongWayUs);
  if (splits == 1 && !d_is_aligned(p)) {
    const double elements = static_cast<double>(p.m) * static_cast<double>(p.n) *
                            static_cast<double>(batches) /
                            static_cast<double>(units * tile.cluster);  // of a tile that exist
    store_us = std::max(store_us, (along_x ? kLooseElementUs : kLooseWrongWayUs) * elements);
  }
  const double tile_us = kTileUs + store_us;
  const double read = 4.0 * static_cast<double>(p.k) * static_cast<double>(p.m + p.n) *
                      static_cast<double>(batches);
  const int64_t waves = ceil_div<int64_t>(units, std::max(sm_count / tile.cluster, 1));
  const double busy = static_cast<double>(waves) * (k_us + tile_us),
               stream = read / kReadBytesPerUs;
  double us = kLaunchUs + kStartUs + std::max(busy, stream) + kOverlapLost * std::min(busy, stream);
  if (splits > 1) us += kReduceUs + 2.0 * static_cast<double>(partials) / kReduceBytesPerUs;
  if (bytes > 0) us += kCopyUs + 2.0 * static_cast<double>(bytes) / kCopyBytesPerUs;
  const Choice choice{&tile, swapped, splits, units, partials + bytes, us};
  if (auto* log = CandidateLog<Config>::active()) log->add(config_of(p, choice, sm_count), us);
  if (us < best->us) *best = choice;
}

// mma.sync: any strides and batches. K is in as many parts as fill the SMs once.
bool select_sm80(const GemmProblem& p, const DeviceInfo& device, Config* config,
                 double* estimate_us) {
  constexpr int kTile = 128;
  constexpr int64_t kMaxKPerSplit = int64_t{1} << 30;  // a CTA counts its part in 32 bits
  constexpr int64_t kMinKPerSplit = 256;
  constexpr double kMmaEfficiency = 0.6;
  constexpr double kMmaCyclesPerUs = 1400, kMmaWaveUs = 3;
  // What data centers have: elsewhere TF32 is no faster than fp32, and three products are slower.
  const int capability = device.capability;
  const bool large = capability == 80 || (capability >= 90 && capability < 120);
  const bool three = p.precision == Precision::kTf32x3;
  if (three && !large) return false;
  const int sm_count = std::max(device.sm_count, 1);
  const fp32::Params shape = fp32::make_params(p);
  const int64_t tiles =
      ceil_div<int64_t>(p.m, kTile) * ceil_div<int64_t>(p.n, kTile) * shape.batches;
  const int64_t least = ceil_div(p.k, kMaxKPerSplit);
  const int64_t most = std::max(least, std::min<int64_t>(p.k / kMinKPerSplit, kMaxSplits));
  const int64_t parts = std::clamp<int64_t>(int64_t{sm_count} / tiles, least, most);
  const int64_t k_per_split = round_up<int64_t>(ceil_div(p.k, parts), fp32::kBlockK);
  const int64_t splits = ceil_div(p.k, k_per_split);
  const int64_t partials =
      splits > 1 ? 4 * splits * shape.batches * shape.m * shape.partial_stride : 0;
  if (partials > kMaxWorkspace && least == 1) return false;
  // FMAs a cycle, one SM; Hopper and Blackwell keep more for wgmma and tcgen05.
  const double peak = !large ? 128 : capability == 80 ? 512 : 660;
  const double rate = peak * kMmaEfficiency;
  const double fmas = static_cast<double>(k_per_split) * kTile * kTile * (three ? 3 : 1);
  const int64_t waves = ceil_div<int64_t>(tiles * splits, sm_count);
  *estimate_us =
      kLaunchUs + static_cast<double>(waves) * (fmas / rate / kMmaCyclesPerUs) + kMmaWaveUs;
  if (splits > 1)
    *estimate_us += kReduceUs + 2.0 * static_cast<double>(partials) / kReduceBytesPerUs;
  *config = {.kernel = Kernel::kTf32Sm80,
             .block_m = kTile,
             .block_n = kTile,
             .stages = 3,
             .splits = static_cast<int>(splits),
             .ctas = static_cast<int>(std::min<int64_t>(tiles * splits, INT32_MAX)),
             .workspace_bytes = partials,
             .reason = "TF32 by mma.sync is estimated to be faster than FP32 cores"};
  if (auto* log = CandidateLog<Config>::active()) log->add(*config, *estimate_us);
  return true;
}

}  // namespace

bool select(const GemmProblem& p, const DeviceInfo& device, Config* config, double* estimate_us) {
  if (device.capability < 80 || p.k == 0) return false;
  if (device.capability != 90 || !fits(p)) return select_sm80(p, device, config, estimate_us);
  const bool three = p.precision == Precision::kTf32x3;
  const int sm_count = std::max(device.sm_count, 1);
  const int64_t k_tiles = ceil_div<int64_t>(p.k, kBlockK);
  const int64_t most = std::clamp<int64_t>(k_tiles / kMinKTilesPerSplit, 1, kMaxSplits);
  Choice best;
  const auto consider_tile = [&](const Tile& tile, bool swapped) {
    if (tile.cluster > sm_count) return;
    const int64_t tiles = tiles_of(p, tile, swapped);
    consider(p, tile, swapped, 1, sm_count, &best);
    for (const int waves : {1, 2}) {  // K in as many parts as fill the SMs so often
      const int64_t parts =
          std::min<int64_t>(int64_t{sm_count / tile.cluster} * waves / tiles, most);
      if (parts > 1) consider(p, tile, swapped, parts, sm_count, &best);
    }
  };
  for (const bool swapped : {false, true}) {
    if (three) {
      for (const Tile& tile : kTilesOfThree) consider_tile(tile, swapped);
    } else {
      for (const Tile& tile : kTilesOfOne) consider_tile(tile, swapped);
    }
  }
  if (best.tile == nullptr) return false;
  *estimate_us = best.us;
  *config = config_of(p, best, sm_count);
  return true;
}

}  // namespace xgemm::cuda::gemm::tf32
