#include "cuda/gemm/gemv/select.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/gemv/view.h"
#include "cuda/ptx/l2_policy.h"

namespace xgemm::cuda::gemm::gemv {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

constexpr int64_t kMaxNarrow = 8;
constexpr int64_t kMaxStride = int64_t{1} << 24;  // 32 bits hold 64 of them
constexpr int64_t kMaxExtent = int64_t{1} << 30;  // and tiles may reach past the end
constexpr int64_t kPastL2Bytes = 400'000'000;
constexpr int64_t kMinRows = 512;  // for CTAs of a row or two each
// Of a large W, which is read faster, a row of so many k takes as long as its CTA's wait for the
// launch before (1x262208x2560: 327 us, by tiles of two rows 315).
constexpr int kMinKPastL2 = 2752;

bool aligned16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

bool small_stride(int64_t stride, int64_t extent) {
  return extent <= 1 || (stride >= 0 && stride < kMaxStride);
}

// The operands with B (or, swapped, A) as W.
struct Side {
  GemmOperand w, x;  // w: [k, wide], x: [narrow, k]
  int64_t narrow, wide;
};

Side side_of(const GemmProblem& p, bool swapped) {
  if (!swapped) return {p.b, p.a, p.m, p.n};
  return {{p.a.data, p.a.col_stride, p.a.row_stride},
          {p.b.data, p.b.col_stride, p.b.row_stride},
          p.n,
          p.m};
}

// How many W there are: batches may share one, and read it from L2.
int64_t matrices_of(const Params& q) {
  int64_t matrices = 1;
  for (int i = 0; i < q.batch_dims; ++i) matrices *= q.batch[i].w != 0 ? q.batch[i].size : 1;
  return matrices;
}
int64_t w_bytes_of(const Params& q) { return 2 * matrices_of(q) * q.wide * q.k; }

// The shape to choose; null where there is none.
const Shape* find_shape(const View& view) {
  const Params& q = view.params;
  const auto suits = [&](const Shape& shape) {
    if (!fits(shape, view) || q.k < shape.least_k) return false;
    if (!shape.by_rows) return true;
    const bool waits = q.narrow == 1 && q.k < kMinKPastL2 && w_bytes_of(q) >= kPastL2Bytes;
    return q.wide * q.batches >= kMinRows && !waits;
  };
  const Shape* found = std::find_if(std::begin(kShapes), std::end(kShapes), suits);
  return found != std::end(kShapes) ? found : nullptr;
}

int64_t ctas_of(const View& view, const Shape& shape) {
  return ceil_div<int64_t>(view.params.wide, shape.tile) * view.params.batches;
}

// Splits of k for more CTAs, where a split keeps some steps for every warp: a cluster's sum costs
// about two of them. With contiguous columns more than one CTA an SM is no gain (measured: the
// reads are short pieces of many rows, and the more of them the worse the memory likes it).
int choose_splits(const View& view, const Shape& shape, const DeviceInfo& device) {
  if (shape.by_rows) return 1;
  const bool k_major = shape.layout == Layout::kKMajor;
  const int64_t most = device.sm_count *
                       (k_major            ? int64_t{2} * shape.ctas_per_sm
                        : shape.tile > 128 ? 2
                                           : 3) /
                       2;
  const int64_t least_k = int64_t{shape.step_k} * shape.most_warps * (k_major ? 2 : 1);
  int splits = 1;
  while (splits < kMaxSplits && ctas_of(view, shape) * splits * 2 <= most &&
         view.params.k >= least_k * splits * 2) {
    splits *= 2;
  }
  return splits;
}

// The read time, by how near to it the kernel came on an H200; and at least the latency of the
// steps that a warp takes one after the other.
Estimate estimate(const View& view, const Shape& shape, const DeviceInfo& device, int splits) {
  constexpr double kUnalignedFactor = 1.3;
  // Where only X has no vectors along K: for up to 4 rows, and for more.
  constexpr double kNarrowStridedFactor = 1.45, kStridedFactor = 2.1;
  constexpr double kWideUs = 3;     // of W along aligned rows
  constexpr double kTailUs = 0.25;  // of a step that is not whole, for each vector
  const bool k_major = shape.layout == Layout::kKMajor;
  const Params& q = view.params;
  const auto w_bytes = static_cast<double>(w_bytes_of(q));
  const double other_bytes =
      2.0 * static_cast<double>(q.batches) * q.narrow * (static_cast<double>(q.k) + q.wide);
  const bool w_aligned = aligned16(q.w) && q.w_stride % 8 == 0;
  double factor = shape.by_rows ? 0.97 + 0.01 * (q.narrow - 1)
                  : k_major     ? 1.01 + 0.0115 * q.narrow + (q.narrow > 4 ? 0.05 : 0)
                  : w_aligned   ? (q.narrow == 1 ? 1.04 : 1.12)
                                : (q.narrow == 1 ? 1.08 : 1.25);
  double step_us = k_major || shape.narrow == 1 ? 0.9 : 1.9;
  if (!view.aligned) {
    const double strided = q.narrow > 4 ? kStridedFactor : kNarrowStridedFactor;
    const double slower = k_major && !q.x_vectors ? strided : kUnalignedFactor;
    factor *= slower, step_us *= slower;
  }
  int ctas_per_sm = shape.ctas_per_sm;
  if (shape.by_rows) {
    const int warps = static_cast<int>(ceil_div<int64_t>(q.k, shape.step_k));
    ctas_per_sm = std::min(32, ctas_per_sm * shape.most_warps / std::min(warps, shape.most_warps));
  }
  const double waves = std::ceil(static_cast<double>(ctas_of(view, shape)) * splits /
                                 (device.sm_count * ctas_per_sm));
  const double steps =
      std::ceil(static_cast<double>(q.k) / splits / (shape.step_k * shape.most_warps));
  const double launch_us = k_major && shape.narrow == 8 ? 6.5 : 3;
  const double tail = k_major && q.k % shape.step_k != 0 ? kTailUs * shape.narrow : 0;
  const double wide_us = !k_major && w_aligned ? kWideUs : 0;
  const double dram_us =
      factor * choose::constants_of(device).cold_read_us((w_bytes + other_bytes) * 1e-6);
  const double latency_us = launch_us + step_us * waves * steps + (splits > 1 ? 2 * step_us : 0);
  return {.us = tail + wide_us + std::max(dram_us, latency_us),
          .parts = {.launch = launch_us,
                    .first_bytes = wide_us,
                    .dram = dram_us,
                    .issue = step_us * waves * steps,
                    .exchange = splits > 1 ? 2 * step_us : 0,
                    .epilogue = tail}};
}

// With A as W if `swapped`, else B.
std::optional<Scored<Choice>> select_side(const GemmProblem& p, bool swapped,
                                          const DeviceInfo& device) {
  const std::optional<View> view = view_of(p, swapped);
  const Shape* const shape = view ? find_shape(*view) : nullptr;
  if (shape == nullptr || view->params.batches > kMaxExtent) return std::nullopt;
  const int splits = choose_splits(*view, *shape, device);
  const bool cluster = splits > 1 && device.capability == 90;
  const int64_t outputs = p.m * p.n * view->params.batches;
  const int64_t ctas = ctas_of(*view, *shape) * splits;
  return Scored<Choice>{
      {.config = Config{.shape = shape,
                        .swapped = swapped,
                        .splits = splits,
                        .cluster = cluster ? splits : 1,
                        .ctas = static_cast<int>(std::min(kMaxExtent, ctas))},
       .workspace_bytes = splits > 1 && !cluster ? outputs * splits * 4 : 0,
       .reason = swapped ? "few columns: a stream over a" : "few rows: a stream over b"},
      estimate(*view, *shape, device, splits)};
}

}  // namespace

std::optional<View> view_of(const GemmProblem& p, bool swapped) {
  Side side = side_of(p, swapped);
  if (side.narrow > kMaxNarrow) return std::nullopt;
  // Strides of extents of 1 are never used, and become those that suit the kernels.
  if (p.k == 1) side.w.row_stride = side.x.col_stride = 1;
  if (side.wide == 1) side.w.col_stride = 1;
  if (side.narrow == 1) side.x.row_stride = 0;
  const bool k_major = side.w.row_stride == 1 && (p.k > 1 || side.w.col_stride != 1);
  if (!k_major && side.w.col_stride != 1) return std::nullopt;

  View view{};
  view.layout = k_major ? Layout::kKMajor : Layout::kWideMajor;
  Params& q = view.params;
  q.w = side.w.data, q.x = side.x.data, q.d = p.d;
  q.w_stride = k_major ? side.w.col_stride : side.w.row_stride;
  q.x_stride = side.x.row_stride, q.x_k_stride = side.x.col_stride;
  q.d_narrow_stride = swapped ? p.d_col_stride : p.d_row_stride;
  q.d_wide_stride = swapped ? p.d_row_stride : p.d_col_stride;
  q.bias = p.bias;
  q.bias_narrow_stride = swapped ? p.bias_stride : 0;
  q.bias_wide_stride = swapped ? 0 : p.bias_stride;
  q.activation = p.activation;
  if (std::max(side.wide, p.k) > kMaxExtent) return std::nullopt;
  q.narrow = static_cast<int>(side.narrow);
  q.wide = static_cast<int>(side.wide), q.k = static_cast<int>(p.k);
  if (!small_stride(q.w_stride, k_major ? side.wide : p.k) ||
      !small_stride(q.x_stride, side.narrow) || !small_stride(q.x_k_stride, p.k)) {
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
  // L2 drops a W that is read once first, so that it need not write back what it holds meanwhile.
  // But of a W that is many times L2 it then reads more slowly (1x57344x8192: 219 us, 216.5
  // without).
  const bool drops_w = matrices_of(q) == q.batches && w_bytes_of(q) < kPastL2Bytes;
  q.w_policy = drops_w ? ptx::kEvictFirst : ptx::kEvictNormal;
  return view;
}

bool fits(const Shape& shape, const View& view) {
  const Params& q = view.params;
  if (shape.layout != view.layout || q.narrow > shape.narrow) return false;
  return !shape.by_rows ||
         (q.narrow == shape.narrow && view.aligned && q.k % 8 == 0 && q.batch_dims <= 1);
}

std::optional<Scored<Choice>> select(const GemmProblem& p, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  if (device.capability < 80 || (p.dtype != DType::kF16 && p.dtype != DType::kBF16))
    return std::nullopt;
  if (p.alpha != 1.0f || p.beta != 0.0f || p.m == 0 || p.n == 0 || p.k == 0) return std::nullopt;
  // The shorter side is X, if it can be.
  auto scored = select_side(p, p.n < p.m, device);
  if (!scored) scored = select_side(p, p.n >= p.m, device);
  if (scored && listing != nullptr) listing->push_back(*scored);
  return scored;
}

}  // namespace xgemm::cuda::gemm::gemv
