#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "cpu/sgemm/api.h"
#include "cpu/w4a16/api.h"
#include "sanitize/cases.h"

namespace xgemm::sanitize {
namespace {

using Layout = Array::Layout;

// A packed weight of small numbers, and its dequantized elements, row-major.
struct Weight {
  Weight(Rng& rng, const Parallel& parallel);

  w4::Layout layout;
  Memory packed;
  cpu::W4Weight view;
  std::vector<double> elements;
};

w4::Layout draw_layout(Rng& rng) {
  const int64_t n = one_in(rng, 4) ? draw(rng, 60, 300) : draw(rng, 1, 70);
  const int64_t k = one_in(rng, 4) ? draw(rng, 100, 700) : draw(rng, 1, 140);
  return {n, k, pick<int64_t>(rng, {32, 64, 128, -1}), one_in(rng, 2)};
}

Weight::Weight(Rng& rng, const Parallel& parallel)
    : layout(draw_layout(rng)), packed(rng, layout.bytes()) {
  const auto [n, k, group_size, zeros] = layout;
  view = {packed.data(), layout, one_in(rng, 2)};
  std::printf("weight [%lld, %lld], groups of %lld, zeros %d, %s scales\n",
              static_cast<long long>(n), static_cast<long long>(k),
              static_cast<long long>(group_size), zeros, view.bf16_scales ? "bf16" : "fp16");
  const DType scale_dtype = view.bf16_scales ? DType::kBF16 : DType::kF16;
  Array codes(rng, DType::kU8, {n, k}, Layout::kDense);
  Array scales(rng, scale_dtype, {layout.groups(), n}, Layout::kDense);
  Array points(rng, DType::kF16, {layout.groups(), n}, Layout::kDense);
  codes.fill(rng, 0, 15), scales.fill(rng, -2, 2), points.fill(rng, 0, 15);
  const auto* zero_data = zeros ? static_cast<const uint16_t*>(points.data()) : nullptr;
  cpu::w4_pack(layout, static_cast<const uint8_t*>(codes.data()),
               static_cast<const uint16_t*>(scales.data()), zero_data, packed.data(), parallel);

  Array codes2(rng, DType::kU8, {n, k}, Layout::kDense);
  Array scales2(rng, scale_dtype, {layout.groups(), n}, Layout::kDense);
  Array points2(rng, DType::kF16, {layout.groups(), n}, Layout::kDense);
  cpu::w4_unpack(layout, packed.data(), static_cast<uint8_t*>(codes2.data()),
                 static_cast<uint16_t*>(scales2.data()),
                 zeros ? static_cast<uint16_t*>(points2.data()) : nullptr, parallel);
  require(codes.values() == codes2.values(), "unpack: codes");
  require(scales.values() == scales2.values(), "unpack: scales");
  require(!zeros || points.values() == points2.values(), "unpack: zeros");

  for (int64_t row = 0; row < n; ++row) {
    for (int64_t channel = 0; channel < k; ++channel) {
      const int64_t group = group_size == -1 ? 0 : channel / group_size;
      const double zero = zeros ? points.get({group, row}) : w4::kSymmetricZero;
      elements.push_back((codes.get({row, channel}) - zero) * scales.get({group, row}));
    }
  }
  const DType dtype = pick(rng, {DType::kF32, DType::kF16, DType::kBF16});
  Array whole(rng, dtype, {n, k}, Layout::kDense);
  cpu::w4_dequantize(view, dtype, whole.data(), parallel);
  require(whole.values() == elements, "dequantize");
}

// Y = X W^T, by the way that the op takes.
void forward(Rng& rng, const Weight& weight, const Parallel& parallel) {
  const int64_t n = weight.layout.n, k = weight.layout.k;
  const DType dtype = pick(rng, {DType::kF32, DType::kF16, DType::kBF16});
  const int64_t m = one_in(rng, 3) ? draw(rng, 1, 70) : draw(rng, 1, 9);
  Array x(rng, dtype, {m, k}, Layout::kShared), bias(rng, dtype, {n}, Layout::kShared);
  Array y(rng, dtype, {m, n}, Layout::kApart);
  x.fill(rng, -2, 2), bias.fill(rng, -2, 2);
  const bool infinite = one_in(rng, 8);  // the rows of an infinity are not compared
  if (infinite) x.set({draw(rng, 0, m - 1), draw(rng, 0, k - 1)}, INFINITY);
  Memory order(rng, k * 4);
  auto* perm = reinterpret_cast<int32_t*>(order.data());
  std::iota(perm, perm + k, 0);
  std::shuffle(perm, perm + k, rng);

  cpu::W4Problem p;
  p.m = m, p.weight = weight.view, p.dtype = dtype;
  p.x = x.data(), p.x_row_stride = x.stride(0), p.x_col_stride = x.stride(1);
  p.y = y.data(), p.y_row_stride = y.stride(0), p.y_col_stride = y.stride(1);
  if (one_in(rng, 2)) p.bias = bias.data(), p.bias_stride = bias.stride(0);
  if (one_in(rng, 3)) p.perm = perm;
  p.activation = pick(rng, {Activation::kNone, Activation::kRelu});
  p.batch_invariant = one_in(rng, 4);
  const bool streams = cpu::w4a16_streams(p);
  if (!streams) p.perm = nullptr;  // the op has gathered X then
  std::printf("%s: %lld rows, %s, X (%lld, %lld), Y (%lld, %lld), perm %d, bias %d, %d threads\n",
              streams ? "stream" : "panels", static_cast<long long>(m), name_of(dtype),
              static_cast<long long>(x.stride(0)), static_cast<long long>(x.stride(1)),
              static_cast<long long>(y.stride(0)), static_cast<long long>(y.stride(1)),
              p.perm != nullptr, p.bias != nullptr, parallel.num_threads());
  std::fflush(stdout);
  if (streams) {
    cpu::w4a16_stream(p, parallel);
  } else {
    const cpu::W4Panels panels(weight.view);
    GemmProblem dense;
    dense.m = m, dense.n = n, dense.k = k, dense.dtype = dtype;
    dense.a = {x.data(), x.stride(0), x.stride(1)};
    dense.d = y.data(), dense.d_row_stride = y.stride(0), dense.d_col_stride = y.stride(1);
    dense.bias = p.bias, dense.bias_stride = p.bias_stride;
    dense.activation = p.activation;
    cpu::gemm(dense, parallel, &panels);
  }
  for (int64_t i = 0; i < m; ++i) {
    std::vector<double> row;
    for (int64_t j = 0; j < k; ++j) row.push_back(x.get({i, p.perm ? perm[j] : j}));
    if (infinite && !std::all_of(row.begin(), row.end(), [](double v) { return std::isfinite(v); }))
      continue;
    for (int64_t j = 0; j < n; ++j) {
      double sum = p.bias != nullptr ? bias.get({j}) : 0;
      for (int64_t q = 0; q < k; ++q) sum += row[q] * weight.elements[j * k + q];
      if (p.activation == Activation::kRelu && sum < 0) sum = 0;
      const double got = y.get({i, j});
      require(got == rounded(sum, dtype), "w4a16", got, rounded(sum, dtype));
    }
  }
  require(y.gaps_untouched(), "w4a16: wrote between Y's elements");
}

// grad W, the gradient in X.
void backward(Rng& rng, const Weight& weight, const Parallel& parallel) {
  const int64_t n = weight.layout.n, k = weight.layout.k, m = draw(rng, 1, 20);
  const DType dtype = pick(rng, {DType::kF32, DType::kF16, DType::kBF16});
  Array grad(rng, dtype, {m, n}, Layout::kShared), d(rng, dtype, {m, k}, Layout::kDense);
  grad.fill(rng, -2, 2);
  std::printf("gradient: %lld rows, %s, %d threads\n", static_cast<long long>(m), name_of(dtype),
              parallel.num_threads());
  std::fflush(stdout);
  const cpu::W4PanelsTransposed panels(weight.view);
  GemmProblem p;
  p.m = m, p.n = k, p.k = n, p.dtype = dtype;
  p.a = {grad.data(), grad.stride(0), grad.stride(1)};
  p.d = d.data(), p.d_row_stride = k;
  cpu::gemm(p, parallel, &panels);
  const std::vector<double> rows = grad.values();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      double sum = 0;
      for (int64_t q = 0; q < n; ++q) sum += rows[i * n + q] * weight.elements[q * k + j];
      require(d.get({i, j}) == rounded(sum, dtype), "gradient", d.get({i, j}), rounded(sum, dtype));
    }
  }
}

}  // namespace

void w4_case(Rng& rng, const Parallel& parallel) {
  const Weight weight(rng, parallel);
  forward(rng, weight, parallel);
  if (one_in(rng, 3)) backward(rng, weight, parallel);
}

}  // namespace xgemm::sanitize
