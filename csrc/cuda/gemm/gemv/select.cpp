#include "cuda/gemm/gemv/select.h"

#include <algorithm>
#include <cmath>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/gemm/gemv/view.h"
#include "cuda/gemm/sm90/row_begins.h"
#include "cuda/gemm/sm90/together.h"
#include "cuda/ptx/l2_policy.h"

namespace xgemm::cuda::gemm::gemv {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

// A roofline, in microseconds of an H200, cold L2; fitted to recorded times of few rows and columns
// (tests/data/dense_few_h200.json.xz, docs/measurements/dense.md, "gemv").
constexpr double kLaunchUs = 6.224;
constexpr double kMemoryBytesPerUs = 4.532e6;
// Of the time for memory, more: where a CTA's warps read several rows of W at a time, or rows of
// which it has a piece alone; and for a line that it shares with another CTA.
constexpr double kTileLoss = 0.05625, kPiecesLoss = 0.1721, kSharedLineLoss = 0.8745;
// Of a step of a CTA's warps, from its loads to its products; none is asked for before. For each
// vector; for loads at any alignment; for each load of X that gathers elements.
constexpr double kStepUs = 0.8264, kVectorUs = 0.08391;
constexpr double kUnalignedUs = 0.6179, kGatherUs = 0.4075;
constexpr double kCtaUs = 0.247e-3;  // of the GPU, to start a CTA and to end it
// Of the sums of splits of K: over a cluster, or through memory by a second launch (as fp32's).
constexpr double kClusterUs = 1.798, kSecondLaunchUs = 3.0;

constexpr int64_t kMaxNarrow = 8;
constexpr int64_t kMaxStride = int64_t{1} << 24;  // 32 bits hold 64 of them
constexpr int64_t kMaxExtent = int64_t{1} << 30;  // and tiles may reach past the end
constexpr int64_t kMaxEvictFirstBytes = 400'000'000;

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

struct Candidate {
  const Shape* shape;
  int splits;
};

class Model {
 public:
  using Candidate = gemv::Candidate;

  Model(const View& view, bool swapped, const DeviceInfo& device)
      : view_(view), swapped_(swapped), device_(device) {}

  // Every compiled shape that fits, by every power of two of splits that leaves each some k.
  template <typename Search>
  void candidates(Search& search) const {
    for (const Shape& shape : kShapes) {
      if (!fits(shape, view_)) continue;
      const int most = shape.by_rows ? 1 : std::clamp(view_.params.k / shape.step_k, 1, kMaxSplits);
      for (int splits = 1; splits <= most; splits *= 2) search.consider({&shape, splits});
    }
  }

  Estimate estimate(const Candidate& c, double) const;
  Choice choice(const Candidate& c) const;

 private:
  int64_t ctas_of(const Candidate& c) const {
    return ceil_div<int64_t>(view_.params.wide, c.shape->tile) * view_.params.batches * c.splits;
  }
  // A piece of a row that does not begin with a line shares one with the piece before it.
  double pieces_loss(const Shape& shape) const {
    constexpr double kLineElements = 64;
    const double within = 1 - sm90::row_begins(view_.params.w_stride).with_line;
    return kPiecesLoss + kSharedLineLoss * within * kLineElements / shape.tile;
  }
  bool has_clusters() const { return device_.capability == 90; }

  const View& view_;
  bool swapped_;
  const DeviceInfo& device_;
};

Choice Model::choice(const Candidate& c) const {
  const Params& q = view_.params;
  const bool in_memory = c.splits > 1 && !has_clusters();
  return {.config = Config{.shape = c.shape,
                           .swapped = swapped_,
                           .splits = c.splits,
                           .cluster = in_memory ? 1 : c.splits,
                           .ctas = static_cast<int>(std::min(kMaxExtent, ctas_of(c)))},
          .workspace_bytes = in_memory ? q.batches * q.narrow * q.wide * c.splits * 4 : 0,
          .reason = swapped_ ? "few columns: a stream over a" : "few rows: a stream over b"};
}

Estimate Model::estimate(const Candidate& c, double) const {
  const Shape& shape = *c.shape;
  const Params& q = view_.params;
  const auto& gpu = choose::constants_of(device_);
  const Cut cut = cut_of(shape, q.k, c.splits);
  const auto ctas = static_cast<double>(ctas_of(c));
  const double x_and_d_bytes =
      2.0 * static_cast<double>(q.batches) * q.narrow * (static_cast<double>(q.k) + q.wide);
  const double w_loss = shape.by_rows                     ? 0
                        : view_.layout == Layout::kKMajor ? kTileLoss
                                                          : pieces_loss(shape);
  const double dram_us = (static_cast<double>(w_bytes_of(q)) + x_and_d_bytes) /
                         (kMemoryBytesPerUs * gpu.dram_speed) * (1 + w_loss);

  const double step_us = kStepUs + kVectorUs * shape.narrow + (view_.aligned ? 0 : kUnalignedUs) +
                         (q.x_vectors ? 0 : kGatherUs * shape.x_loads());
  const int of_sm = std::min(32, shape.ctas_of_sm(view_.aligned) * shape.most_warps / cut.warps);
  const double waves = std::ceil(ctas / (static_cast<double>(device_.sm_count) * of_sm));
  const double issue_us =
      waves * cut.passes * step_us / gpu.clock_speed + ctas * kCtaUs / gpu.all_sms_speed;
  const double splits_us = c.splits == 1 ? 0 : has_clusters() ? kClusterUs : kSecondLaunchUs;
  return {
      .us = kLaunchUs + sm90::together(dram_us, issue_us, 0) + splits_us,
      .parts = {.launch = kLaunchUs, .dram = dram_us, .issue = issue_us, .exchange = splits_us}};
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
  const bool drops_w = matrices_of(q) == q.batches && w_bytes_of(q) < kMaxEvictFirstBytes;
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
  for (const bool swapped : {p.n < p.m, p.n >= p.m}) {
    const std::optional<View> view = view_of(p, swapped);
    if (!view || view->params.batches > kMaxExtent) continue;
    return choose::pick<Choice>(Model(*view, swapped, device), listing);
  }
  return std::nullopt;
}

}  // namespace xgemm::cuda::gemm::gemv
