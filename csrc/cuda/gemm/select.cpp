// Which kernel a dense problem gets.
#include <algorithm>
#include <limits>
#include <sstream>

#include "common/math.h"
#include "cuda/gemm/problem.h"

namespace xgemm::cuda::gemm {
namespace {

// A tile of the sm_90a kernel, and the share of the tensor cores' rate that its main loop reaches
// (measured on an H200 by benchmarks/sweep_mul.py).
struct Tile {
  int block_n, stages, cluster;
  double efficiency;
};
constexpr Tile kSm90Tiles[] = {
    {256, 4, 2, 1.00}, {256, 4, 1, 0.98}, {224, 4, 2, 0.98}, {192, 5, 2, 0.98},
    {160, 5, 2, 0.97}, {128, 6, 2, 0.93}, {128, 6, 1, 0.85},
};
constexpr int kSm90BlockM = 128;
// What a tile costs beside its main loop (filling the ring, the epilogue's tail), in columns of k.
constexpr double kTileOverheadK = 64;

// TMA wants 16-byte aligned bases and strides, and one dimension contiguous.
bool fits_tma(const void* data, int64_t contiguous_stride, int64_t stride, int64_t extent) {
  constexpr int64_t kMostBytes = int64_t{1} << 40;
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || contiguous_stride != 1) return false;
  return extent <= 1 || (stride % 8 == 0 && stride > 0 && stride * 2 < kMostBytes);
}

// True where an operand's rows along K suit TMA.
bool k_major(int64_t k_stride, int64_t mn_stride, int64_t mn) {
  return k_stride == 1 && (mn <= 1 || (mn_stride % 8 == 0 && mn_stride > 0));
}

bool operand_fits_tma(const Operand& operand, int64_t rows, int64_t columns) {
  return fits_tma(operand.data, operand.col_stride, operand.row_stride, rows) ||
         fits_tma(operand.data, operand.row_stride, operand.col_stride, columns);
}

bool batch_stride_fits(int64_t stride) { return stride >= 0 && stride % 8 == 0; }

// Why the sm_90a kernel cannot take the problem, or null.
const char* sm90_obstacle(const Problem& p, const DeviceInfo& device) {
  constexpr int64_t kMost =
      std::numeric_limits<int32_t>::max() - 1024;  // tiles may reach past the end
  if (device.capability != 90) return "the GPU is not of compute capability 9.0";
  if (p.dtype == DType::kF32) return "operands are fp32";
  if (p.alpha != 1.0f || p.beta != 0.0f) return "alpha is not 1 or beta is not 0";
  if (p.k == 0) return "K is 0";
  if (std::max({p.m, p.n, p.k}) > kMost) return "an extent is beyond 2^31";
  if (p.batch_dims > 1) return "the batch has several dimensions that do not merge";
  if (!operand_fits_tma(p.a, p.m, p.k)) return "a is not aligned for TMA";
  if (!operand_fits_tma(p.b, p.k, p.n)) return "b is not aligned for TMA";
  if (p.batch_dims == 1) {
    const BatchDim& batch = p.batch[0];
    if (batch.size > kMost) return "an extent is beyond 2^31";
    if (!batch_stride_fits(batch.a) || !batch_stride_fits(batch.b)) {
      return "a batch stride is not aligned for TMA";
    }
  }
  return nullptr;
}

bool d_fits_tma(const Problem& p) {
  if (!fits_tma(p.d, p.d_col_stride, p.d_row_stride, p.m)) return false;
  return p.batch_dims == 0 || (p.batch[0].d > 0 && p.batch[0].d % 8 == 0);
}

}  // namespace

Config select_config(const Problem& p, const DeviceInfo& device) {
  int64_t batch = 1;
  for (int i = 0; i < p.batch_dims; ++i) batch *= p.batch[i].size;
  Config config;
  if (const char* obstacle = sm90_obstacle(p, device)) {
    const int64_t tiles = ceil_div<int64_t>(p.m, 64) * ceil_div<int64_t>(p.n, 64) * batch;
    config.ctas = static_cast<int>(std::min<int64_t>(tiles, int64_t{device.sm_count} * 64));
    config.reason = obstacle;
    return config;
  }
  const bool b_mn = !k_major(p.b.row_stride, p.b.col_stride, p.n);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kSm90Tiles) {
    if (b_mn && tile.block_n % 64 != 0) continue;
    const int64_t clusters = ceil_div<int64_t>(p.m, kSm90BlockM * tile.cluster) *
                             ceil_div<int64_t>(p.n, tile.block_n) * batch;
    const int64_t slots = device.sm_count / tile.cluster;
    const int64_t waves = ceil_div(clusters, slots);
    const double cost = static_cast<double>(waves) * tile.block_n / tile.efficiency *
                        (static_cast<double>(p.k) + kTileOverheadK);
    if (cost >= best) continue;
    best = cost;
    config = {.kernel = Kernel::kSm90,
              .block_m = kSm90BlockM,
              .block_n = tile.block_n,
              .stages = tile.stages,
              .cluster = tile.cluster,
              // As few as need the same number of turns: less power, the same time.
              .ctas = static_cast<int>(ceil_div(clusters, waves)) * tile.cluster,
              .tma_store = d_fits_tma(p),
              .reason = "fewest turns, weighted by the tile's rate"};
  }
  return config;
}

std::string explain(const Problem& problem, const Config& config) {
  std::ostringstream out;
  out << "dense GEMM on CUDA: m=" << problem.m << " n=" << problem.n << " k=" << problem.k << " "
      << name_of(problem.dtype) << "\nkernel: "
      << (config.kernel == Kernel::kSm90 ? "sm90 (wgmma + TMA)" : "simt (any stride and alignment)")
      << ", tile " << config.block_m << "x" << config.block_n;
  if (config.kernel == Kernel::kSm90) {
    out << ", " << config.stages << " stages of 64 k, cluster of " << config.cluster << ", "
        << (config.tma_store ? "TMA store" : "element-wise store");
  }
  out << ", " << config.ctas << " CTAs\nbecause: " << config.reason << "\n";
  return out.str();
}

}  // namespace xgemm::cuda::gemm
