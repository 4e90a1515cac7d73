#include "cuda/gemm/sm90/small/select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/math.h"
#include "cuda/gemm/sm90/small/tile.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90::small {
namespace {

constexpr int64_t kMostGrid = 65535;  // of its rows, and of a batch

// Fitted to an H200, cold L2: 306 shapes of up to 4 GFLOP, 6.6 % off on average, and the tile that
// it takes 0.5 % slower than the best.
//
// The launch, and until a CTA's first operands are there: 4.84, and what the other kernels' models
// are high by for products as small.
constexpr double kLaunchUs = 5.15;
constexpr double kRampUs = 0.56;  // more, for problems of this size on
constexpr double kRampBytes = 0.43e6;
constexpr double kMemoryBytesPerUs = 1.76e6;  // little is in flight
// Lines of 128 bytes: that one SM takes in, and that L2 gives.
constexpr double kSmLinesPerUs = 1564, kL2LinesPerUs = 90.6e3;
// Of a stage of K, and of each box of 64 rows of an operand that is not along K.
constexpr double kStageUs = 0.148, kBoxUs = 0.034;
constexpr double kTurnUs = 0.13;  // of CTAs after the first

// Lines of 128 bytes that 128 bytes of a row lie in.
int lines_of_row(int64_t stride) { return stride % kChunkK == 0 ? 1 : 2; }

double fourth(double x) { return x * x * x * x; }

double estimate(const Problem& p, const DeviceInfo& device, const Shape& shape, int64_t ctas,
                int64_t batch) {
  const bool a_mn = !a_k_major(p), b_mn = !b_k_major(p);
  const auto chunks = static_cast<double>(ceil_div<int64_t>(p.k, kChunkK));
  const int a_lines = lines_of_row(a_mn ? p.a.col_stride : p.a.row_stride);
  const int b_lines = lines_of_row(b_mn ? p.b.row_stride : p.b.col_stride);
  const auto lines = static_cast<double>(std::min<int64_t>(p.m, shape.block_m) * a_lines +
                                         std::min<int64_t>(p.n, shape.block_n) * b_lines);
  const int boxes = (a_mn ? shape.block_m : 0) / kChunkK + (b_mn ? shape.block_n : 0) / kChunkK;
  const auto turns = static_cast<double>(ceil_div<int64_t>(ctas, device.sm_count));
  const auto bytes =
      2.0 * static_cast<double>(batch) * static_cast<double>(p.m * p.k + p.n * p.k + p.m * p.n);
  // Of things that overlap, a little more than the longest.
  const double overlapped = std::sqrt(std::sqrt(
      fourth(turns * chunks * lines / kSmLinesPerUs) +
      fourth(static_cast<double>(ctas) * chunks * lines / kL2LinesPerUs) +
      fourth(turns * chunks * (kStageUs + kBoxUs * boxes)) + fourth(bytes / kMemoryBytesPerUs)));
  return kLaunchUs + kRampUs * std::min(1.0, bytes / kRampBytes) + overlapped +
         kTurnUs * (turns - 1);
}

}  // namespace

bool select(const Problem& p, const DeviceInfo& device, Config* config, double* estimate_us) {
  constexpr int64_t kMostTurns = 4;  // beyond them persistent CTAs are always ahead
  if (device.capability != 90 || p.dtype == DType::kF32 || p.k == 0) return false;
  if (p.alpha != 1.0f || p.beta != 0.0f) return false;
  if (!extents_fit_tma(p) || !a_fits_tma(p) || !b_fits_tma(p)) return false;
  int64_t batch = 1;
  for (int i = 0; i < p.batch_dims; ++i) batch *= p.batch[i].size;
  if (batch > kMostGrid) return false;
  *estimate_us = std::numeric_limits<double>::infinity();
  for (const Shape& shape : kShapes) {
    if (!b_k_major(p) && shape.block_n % kChunkK != 0) continue;  // whole boxes
    const int64_t rows = ceil_div<int64_t>(p.m, shape.block_m);
    const int64_t columns = ceil_div<int64_t>(p.n, shape.block_n);
    const int64_t most = device.sm_count * kMostTurns;
    if (rows > kMostGrid || rows > most || columns > most || rows * columns * batch > most)
      continue;
    const int64_t ctas = rows * columns * batch;
    const double us = estimate(p, device, shape, ctas, batch);
    if (us >= *estimate_us) continue;
    *estimate_us = us;
    *config = {.kernel = Kernel::kSm90Small,
               .block_m = shape.block_m,
               .block_n = shape.block_n,
               .stages = shape.stages,
               .ctas = static_cast<int>(ctas),
               .reason = "little to do: all of its K at once, and nothing to set up"};
  }
  return *estimate_us < std::numeric_limits<double>::infinity();
}

}  // namespace xgemm::cuda::gemm::sm90::small
