#include "cuda/gemm/fp32/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/math.h"
#include "cuda/gemm/align/plan.h"
#include "cuda/gemm/make_params.h"

namespace xgemm::cuda::gemm::fp32 {
namespace {

// Whether all addresses of a matrix are multiples of 16 bytes, whose contiguous runs start `stride`
// elements apart, and whose stride over the batch is the member `batch`.
bool aligned(const GemmProblem& p, const void* data, int64_t stride, int64_t extent,
             int64_t BatchDim::* batch) {
  uint64_t bits = reinterpret_cast<uintptr_t>(data);
  if (extent > 1) bits |= static_cast<uint64_t>(stride) * sizeof(float);
  for (int i = 0; i < p.batch_dims; ++i) {
    if (p.batch[i].size > 1) bits |= static_cast<uint64_t>(p.batch[i].*batch) * sizeof(float);
  }
  return bits % 16 == 0;
}

OperandParams make_operand(const GemmProblem& p, const void* data, int64_t rows, int64_t row_stride,
                           int64_t k_stride, int64_t BatchDim::* batch) {
  OperandParams operand{static_cast<const float*>(data),
                        row_stride,
                        k_stride,
                        Access::kAlongRows,
                        row_stride == 1,
                        false};
  if (row_stride == 1 && aligned(p, data, k_stride, p.k, batch)) {
    operand.access = Access::kRows16;
    operand.vectors = true;
  } else if (row_stride != 1 && std::abs(k_stride) <= std::abs(row_stride)) {
    operand.access = Access::kAlongK;
    operand.unit_stride = k_stride == 1;
    operand.vectors = k_stride == 1 && aligned(p, data, row_stride, rows, batch);
  }
  return operand;
}

}  // namespace

Params make_params(const GemmProblem& p) {
  Params params{};
  set_common(&params, p);
  params.a = make_operand(p, p.a.data, p.m, p.a.row_stride, p.a.col_stride, &BatchDim::a);
  params.b = make_operand(p, p.b.data, p.n, p.b.col_stride, p.b.row_stride, &BatchDim::b);
  params.d = static_cast<float*>(p.d);
  params.c = static_cast<const float*>(p.c.data);
  params.c_row_stride = p.c.row_stride, params.c_col_stride = p.c.col_stride;
  params.alpha = p.alpha, params.beta = p.beta;
  params.bias = static_cast<const float*>(p.bias);
  params.transposed = is_column_major(p);
  if (params.transposed) transpose(&params);
  params.d_vector =
      params.d_col_stride == 1 && aligned(p, p.d, params.d_row_stride, params.m, &BatchDim::d);
  params.scaled_sums = params.alpha != 0.0f && params.beta == 0.0f && params.bias == nullptr &&
                       params.activation == Activation::kNone;
  params.plain = params.scaled_sums && params.d_col_stride == 1;
  params.store_scale = params.plain ? params.alpha : 1.0f;
  params.partial_stride = round_up<int64_t>(params.n, 4);
  return params;
}

Params make_gemv_params(const GemmProblem& p) {
  Params params = make_params(p);
  if (params.m > params.n) {
    transpose(&params);
    params.transposed = !params.transposed;
    params.d_vector = params.plain = false;
    params.store_scale = 1.0f;
    params.partial_stride = round_up<int64_t>(params.n, 4);
  }
  return params;
}

Params make_tile_params(const GemmProblem& problem, int block_m, int block_n) {
  const bool of_gemv = block_m < block_n || block_m <= kMaxGemvRows;
  Params params = of_gemv ? make_gemv_params(problem) : make_params(problem);
  params.tiles_m = ceil_div<int64_t>(params.m, block_m);
  params.tiles_n = ceil_div<int64_t>(params.n, block_n);
  return params;
}

GemvCut gemv_cut(const Params& p, int columns, int64_t k_per_split, int64_t splits) {
  const int64_t depth = std::min(k_per_split, p.k);
  // A pass has so many steps of `step_k`, twice as many where loads are of 16 bytes.
  const auto cut = [&](int64_t groups, int64_t parts, int64_t step_k, int steps_of_pass,
                       bool vectors) {
    const auto steps = static_cast<double>(ceil_div(depth, parts * step_k));
    return GemvCut{static_cast<int>(groups * parts), static_cast<int>(parts),
                   steps / (vectors ? 2 * steps_of_pass : steps_of_pass), vectors};
  };
  if (p.b.access == Access::kAlongK) {
    constexpr int64_t kStepOfK = 128, kWarps = 8;
    const bool vectors =
        p.b.vectors && p.a.vectors && p.a.access == Access::kAlongK && p.k % 4 == 0;
    const int64_t groups = columns / 4;  // of a warp's columns
    const int64_t parts = std::clamp<int64_t>(ceil_div(depth, kStepOfK), 1, kWarps / groups);
    return cut(groups, parts, kStepOfK, 1, vectors);
  }
  constexpr int64_t kManyCtas = 264, kMinSteps = 2, kLongDepth = 1024;
  const int64_t ctas = ceil_div<int64_t>(p.n, columns) * p.batches * splits;
  const int64_t most = ctas <= kManyCtas ? kMaxGemvWarps : depth >= kLongDepth ? 8 : 4;
  const int64_t rows = kMaxGemvColumns / columns;  // of k that a warp takes at a time
  const int64_t parts = std::clamp<int64_t>(ceil_div(depth, rows * kMinSteps), 1, most);
  return cut(1, parts, rows, 4, p.b.vectors && p.n % 4 == 0);
}

bool place_copies(const GemmProblem& problem, align::Copies* copies) {
  if (problem.batch_dims > 1) return false;
  for (const bool of_a : {true, false}) {
    const align::Order order = of_a ? copies->a : copies->b;
    if (order == align::Order::kNone) continue;
    const align::AlignedCopy copy = align::copy_of(problem, of_a, order);
    // At least its CTAs.
    const int64_t blocks = ceil_div<int64_t>(copy.inner, 32) * ceil_div<int64_t>(copy.outer, 32);
    if (blocks * copy.matrices() > INT32_MAX) return false;
    copies->bytes += copy.bytes(problem.dtype);
  }
  return true;
}

bool fits_tma(const Params& params, const OperandParams& operand, int64_t rows,
              int64_t BatchDim::* batch) {
  constexpr int64_t kMaxStride = (int64_t{1} << 40) / sizeof(float) - 1;  // of a tensor map
  if (!operand.vectors) return false;
  const bool along_k = operand.access == Access::kAlongK;
  const int64_t lines = along_k ? rows : params.k;
  const int64_t stride = along_k ? operand.row_stride : operand.k_stride;
  const int64_t batch_stride = params.batch_dims > 0 ? params.batch[0].*batch : 0;
  return (lines <= 1 || (stride > 0 && stride <= kMaxStride)) && batch_stride >= 0 &&
         batch_stride <= kMaxStride;
}

void set_splits(Params* params, int splits, void* workspace) {
  params->splits = splits;
  params->k_per_split = round_up<int64_t>(ceil_div<int64_t>(params->k, splits), kBlockK);
  params->partials = static_cast<float*>(workspace);
  // Partial sums are stored as they are; what is done to D follows their sum.
  if (splits > 1) params->plain = false, params->store_scale = 1.0f;
}

double reduce_us(int64_t splits, int64_t bytes, const choose::DeviceConstants& gpu) {
  constexpr double kLaunchUs = 4.1, kBytesPerUs = 2.1e6;  // written and read again
  if (splits == 1) return 0;
  const auto waits = static_cast<double>(waits_for_parts(splits, bytes / (16 * splits)));
  return kLaunchUs + std::hypot(kPartsWaitUs * waits,
                                static_cast<double>(bytes) / (kBytesPerUs * gpu.dram_speed));
}

}  // namespace xgemm::cuda::gemm::fp32
