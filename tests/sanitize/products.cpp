#include <cstdio>
#include <optional>

#include "cpu/sgemm/api.h"
#include "sanitize/cases.h"

namespace xgemm::sanitize {
namespace {

using Layout = Array::Layout;

DType draw_float(Rng& rng) { return pick(rng, {DType::kF32, DType::kF16, DType::kBF16}); }

int64_t draw_size(Rng& rng) {
  switch (draw(rng, 0, 11)) {
    case 0:
      return draw(rng, 0, 2);
    case 1:
      return draw(rng, 100, 330);  // more than one block of K, and a grid of threads
    case 2:
    case 3:
      return draw(rng, 30, 70);
    default:
      return draw(rng, 1, 20);
  }
}

GemmOperand matrix(const Array& x) { return {x.data(), x.stride(1), x.stride(2)}; }

void say(const GemmProblem& p, int64_t batch, int threads) {
  std::printf(
      "product %lld x %lldx%lldx%lld, %s, A (%lld, %lld), B (%lld, %lld), D (%lld, %lld), "
      "alpha %g, beta %g, bias %d, activation %d, %d threads\n",
      static_cast<long long>(batch), static_cast<long long>(p.m), static_cast<long long>(p.n),
      static_cast<long long>(p.k), name_of(p.dtype), static_cast<long long>(p.a.row_stride),
      static_cast<long long>(p.a.col_stride), static_cast<long long>(p.b.row_stride),
      static_cast<long long>(p.b.col_stride), static_cast<long long>(p.d_row_stride),
      static_cast<long long>(p.d_col_stride), p.alpha, p.beta, p.bias != nullptr,
      static_cast<int>(p.activation), threads);
  std::fflush(stdout);
}

}  // namespace

void product_case(Rng& rng, const Parallel& parallel) {
  const DType dtype = draw_float(rng);
  const bool splits_k = one_in(rng, 30), apart = one_in(rng, 60);  // apart: no thread shares B
  const int64_t m = splits_k ? draw(rng, 1, 20) : apart ? draw(rng, 400, 440) : draw_size(rng);
  const int64_t n = splits_k ? draw(rng, 1, 20) : apart ? draw(rng, 193, 240) : draw_size(rng);
  const int64_t k = splits_k ? draw(rng, 4000, 4700) : apart ? draw(rng, 1, 60) : draw_size(rng);
  const int64_t batch = !apart && one_in(rng, 4) ? draw(rng, 1, 6) : 1;
  Array a(rng, dtype, {batch, m, k}, Layout::kShared),
      b(rng, dtype, {batch, k, n}, Layout::kShared);
  Array d(rng, dtype, {batch, m, n}, Layout::kApart), bias(rng, dtype, {n}, Layout::kShared);
  Array other_c(rng, dtype, {batch, m, n}, Layout::kShared);
  for (Array* x : {&a, &b, &d, &bias, &other_c}) x->fill(rng, -2, 2);
  const Array& c = one_in(rng, 2) ? d : other_c;

  GemmProblem p;
  p.m = m, p.n = n, p.k = k, p.dtype = dtype;
  p.a = matrix(a), p.b = matrix(b), p.c = matrix(c);
  p.d = d.data(), p.d_row_stride = d.stride(1), p.d_col_stride = d.stride(2);
  if (one_in(rng, 3)) p.alpha = pick(rng, {0.0f, -0.5f, 2.0f});
  if (one_in(rng, 3)) p.beta = pick(rng, {1.0f, -1.0f});
  if (one_in(rng, 2)) p.bias = bias.data();
  p.bias_stride = bias.stride(0);
  p.activation = pick(rng, {Activation::kNone, Activation::kNone, Activation::kRelu});
  if (batch > 1) {
    p.batch_dims = 1;
    p.batch[0] = {batch, a.stride(0), b.stride(0), c.stride(0), d.stride(0)};
  }

  const std::vector<double> as = a.values(), bs = b.values(), cs = c.values();
  say(p, batch, parallel.num_threads());
  cpu::gemm(p, parallel);

  for (int64_t i = 0; i < batch * m * n; ++i) {
    const int64_t column = i % n, row = i / n, z = row / m;
    double sum = 0;
    for (int64_t q = 0; q < k; ++q) sum += as[row * k + q] * bs[(z * k + q) * n + column];
    double value = p.alpha * sum + (p.beta != 0 ? p.beta * cs[i] : 0);
    if (p.bias != nullptr) value += bias.get({column});
    if (p.activation == Activation::kRelu && value < 0) value = 0;
    const double got = d.get({z, row % m, column});
    require(got == rounded(value, dtype), "product", got, rounded(value, dtype));
  }
  require(d.gaps_untouched(), "product: wrote between D's elements");
}

}  // namespace xgemm::sanitize
