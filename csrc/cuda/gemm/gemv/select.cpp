#include "cuda/gemm/gemv/select.h"

#include <algorithm>
#include <cmath>

#include "common/math.h"

namespace xgemm::cuda::gemm::gemv {
namespace {

constexpr int64_t kMostFew = 8;
constexpr int64_t kMostStride = int64_t{1} << 24;  // 32 bits hold 64 of them
constexpr int64_t kMostTiles = (int64_t{1} << 31) - 1;

bool aligned16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

bool small_stride(int64_t stride, int64_t extent) {
  return extent <= 1 || (stride >= 0 && stride < kMostStride);
}

// Sets the side of B (or, swapped, of A) as W. Strides of extents of 1 are never used, and become
// those that suit the kernels.
struct Side {
  Operand w, x;  // w: [k, wide], x: [few, k]
  int64_t few, wide;
};

Side side_of(const Problem& p, bool swapped) {
  if (!swapped) return {p.b, p.a, p.m, p.n};
  return {{p.a.data, p.a.col_stride, p.a.row_stride},
          {p.b.data, p.b.col_stride, p.b.row_stride},
          p.n,
          p.m};
}

// The first shape that fits; wide tiles, which want no splits, where they still give every SM one.
const Shape* find_shape(Layout layout, int64_t few, int64_t tiles_wide) {
  const Shape* found = nullptr;
  for (const Shape& shape : kShapes) {
    if (shape.layout != layout || few > shape.few) continue;
    if (found == nullptr || (shape.few == found->few && tiles_wide / shape.tile >= 100))
      found = &shape;
  }
  return found;
}

std::optional<View> view_of_side(const Problem& p, bool swapped) {
  Side side = side_of(p, swapped);
  if (side.few > kMostFew) return std::nullopt;
  if (p.k == 1) side.w.row_stride = side.x.col_stride = 1;
  if (side.wide == 1) side.w.col_stride = 1;
  if (side.few == 1) side.x.row_stride = 0;
  const bool k_major = side.w.row_stride == 1 && (p.k > 1 || side.w.col_stride != 1);
  if (!k_major && side.w.col_stride != 1) return std::nullopt;

  View view{};
  view.swapped = swapped;
  view.shape = find_shape(k_major ? Layout::kKMajor : Layout::kWideMajor, side.few, side.wide);
  Params& q = view.params;
  q.w = side.w.data, q.x = side.x.data, q.d = p.d;
  q.w_stride = k_major ? side.w.col_stride : side.w.row_stride;
  q.x_stride = side.x.row_stride, q.x_k_stride = side.x.col_stride;
  q.d_few_stride = swapped ? p.d_col_stride : p.d_row_stride;
  q.d_wide_stride = swapped ? p.d_row_stride : p.d_col_stride;
  q.bias = p.bias;
  q.bias_few_stride = swapped ? p.bias_stride : 0;
  q.bias_wide_stride = swapped ? 0 : p.bias_stride;
  q.activation = p.activation;
  q.few = static_cast<int>(side.few), q.wide = side.wide, q.k = p.k;
  if (!small_stride(q.w_stride, k_major ? side.wide : p.k) || !small_stride(q.x_stride, side.few) ||
      !small_stride(q.x_k_stride, p.k)) {
    return std::nullopt;
  }
  if ((k_major ? side.wide : p.k) <= 1) q.w_stride = 0;

  bool w_aligned = aligned16(q.w) && q.w_stride % 8 == 0;
  q.x_vectors = q.x_k_stride == 1 && aligned16(q.x) && q.x_stride % 8 == 0;
  q.batches = 1;
  q.batch_dims = p.batch_dims;
  for (int i = 0; i < p.batch_dims; ++i) {
    const BatchDim& dim = p.batch[i];
    const int64_t w = swapped ? dim.a : dim.b, x = swapped ? dim.b : dim.a;
    q.batch[i] = {dim.size, w, x, dim.d};
    q.batches *= dim.size;
    if (dim.size > 1) w_aligned &= w % 8 == 0, q.x_vectors &= x % 8 == 0;
  }
  view.aligned = w_aligned && q.x_vectors;
  return view;
}

// Splits of k: enough CTAs to keep the memory busy, each with a step for every warp.
int choose_splits(const View& view, const DeviceInfo& device) {
  const Shape& shape = *view.shape;
  const int64_t ctas = ceil_div<int64_t>(view.params.wide, shape.tile) * view.params.batches;
  const int64_t wanted = int64_t{device.sm_count} * shape.ctas_per_sm;
  const int64_t step = int64_t{shape.step_k} * shape.most_warps;
  int splits = 1;
  while (splits < kMostSplits && ctas * splits * 2 <= wanted &&
         ceil_div(view.params.k, step) >= splits * 2) {
    splits *= 2;
  }
  return splits;
}

}  // namespace

std::optional<View> view_of(const Problem& p) {
  const bool swapped_first = p.n < p.m;
  if (std::optional<View> view = view_of_side(p, swapped_first)) return view;
  return view_of_side(p, !swapped_first);
}

bool select(const Problem& p, const DeviceInfo& device, Config* config, double* estimate_us) {
  if (device.capability < 80 || (p.dtype != DType::kF16 && p.dtype != DType::kBF16)) return false;
  if (p.alpha != 1.0f || p.beta != 0.0f || p.m == 0 || p.n == 0 || p.k == 0) return false;
  const std::optional<View> view = view_of(p);
  if (!view || ceil_div<int64_t>(view->params.wide, view->shape->tile) > kMostTiles) return false;
  const int splits = choose_splits(*view, device);
  const bool cluster = splits > 1 && device.capability == 90;
  const int64_t outputs = p.m * p.n * view->params.batches;
  *config = {
      .kernel = Kernel::kGemv,
      .block_m = view->swapped ? view->shape->tile : view->shape->few,
      .block_n = view->swapped ? view->shape->few : view->shape->tile,
      .cluster = cluster ? splits : 1,
      .splits = splits,
      .ctas = static_cast<int>(std::min(
          kMostTiles,
          ceil_div<int64_t>(view->params.wide, view->shape->tile) * splits * view->params.batches)),
      .workspace_bytes = splits > 1 && !cluster ? outputs * splits * 4 : 0,
      .reason = view->swapped ? "few columns: a stream over a" : "few rows: a stream over b"};
  *estimate_us = 0;
  return true;
}

}  // namespace xgemm::cuda::gemm::gemv
