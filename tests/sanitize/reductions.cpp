#include <cmath>
#include <cstdio>

#include "cpu/reduce/api.h"
#include "sanitize/cases.h"

namespace xgemm::sanitize {
namespace {

Ints draw_sizes(Rng& rng, int64_t dims) {
  Ints sizes;
  for (int64_t d = 0; d < dims; ++d) sizes.push_back(draw(rng, 1, 9));
  if (dims > 0 && one_in(rng, 2)) {
    sizes[draw(rng, 0, dims - 1)] = one_in(rng, 6) ? draw(rng, 10'000, 70'000) : draw(rng, 10, 300);
  }
  int64_t elements = 1;
  for (int64_t& size : sizes) {
    if (elements * size > 100'000) size = 2;
    elements *= size;
  }
  return sizes;
}

// A product of integers, which wraps as torch's does.
double wrapped_product(const std::vector<double>& x) {
  uint64_t product = 1;
  for (const double number : x) product *= static_cast<uint64_t>(static_cast<int64_t>(number));
  return static_cast<double>(static_cast<int64_t>(product));
}

// The reduction of some numbers in row-major order; exact but for a mean and a norm.
double reduced(ReduceOp op, const std::vector<double>& x, double p) {
  double value = op == ReduceOp::kProd ? 1 : 0;
  size_t best = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (op == ReduceOp::kSum || op == ReduceOp::kMean) value += x[i];
    if (op == ReduceOp::kProd) value *= x[i];
    if (op == ReduceOp::kNorm) value += p == 0 ? x[i] != 0 : std::pow(std::fabs(x[i]), p);
    const bool lower = op == ReduceOp::kAmin || op == ReduceOp::kArgmin;
    if (lower ? x[i] < x[best] : x[i] > x[best]) best = i;
  }
  switch (op) {
    case ReduceOp::kMean:
      return value / static_cast<double>(x.size());
    case ReduceOp::kNorm:
      return p == 0 ? value : std::pow(value, 1 / p);
    case ReduceOp::kAmax:
    case ReduceOp::kAmin:
      return x[best];
    case ReduceOp::kArgmax:
    case ReduceOp::kArgmin:
      return static_cast<double>(best);
    default:
      return value;
  }
}

struct Drawn {
  ReduceOp op;
  DType dtype;
};

Drawn draw_op(Rng& rng) {
  const auto op = static_cast<ReduceOp>(draw(rng, 0, static_cast<int>(ReduceOp::kArgmin)));
  const bool floating = op == ReduceOp::kMean || op == ReduceOp::kNorm || one_in(rng, 2);
  if (floating) {
    return {op, pick(rng, {DType::kF16, DType::kBF16, DType::kF32, DType::kF64})};
  }
  return {op,
          pick(rng, {DType::kI8, DType::kI16, DType::kI32, DType::kI64, DType::kU8, DType::kBool})};
}

}  // namespace

void reduction_case(Rng& rng, const Parallel& parallel) {
  const auto [op, dtype] = draw_op(rng);
  const Ints sizes = draw_sizes(rng, draw(rng, 1, 5));
  Array x(rng, dtype, sizes, Array::Layout::kShared);
  const bool sign = dtype != DType::kU8 && dtype != DType::kBool;
  if (op == ReduceOp::kProd) {
    x.fill(rng, 1, 1);
    for (int i = 0; i < 5; ++i) {
      Ints index;
      for (const int64_t size : sizes) index.push_back(draw(rng, 0, size - 1));
      if (dtype != DType::kBool) x.set(index, sign ? -2 : 2);
    }
  } else {
    x.fill(rng, sign ? -2 : 0, dtype == DType::kBool ? 1 : 2);
  }
  const DType out_dtype = reduce_output_dtype(op, dtype);

  ReduceProblem p;
  p.op = op, p.in_dtype = dtype, p.in = x.data();
  p.p = pick(rng, {2.0, 1.0, 0.0, 3.0});
  Ints kept, kept_sizes, gone, gone_sizes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const bool keep = one_in(rng, 2);
    (keep ? kept : gone).push_back(static_cast<int64_t>(d));
    (keep ? kept_sizes : gone_sizes).push_back(sizes[d]);
  }
  Array out(rng, out_dtype, kept_sizes, Array::Layout::kDense);
  for (size_t i = 0; i < kept.size(); ++i) {
    p.kept.push({kept_sizes[i], x.stride(kept[i]), out.stride(i)});
  }
  for (size_t i = 0; i < gone.size(); ++i) p.reduced.push({gone_sizes[i], x.stride(gone[i]), 0});
  p.out = out.data();

  std::printf("reduction %d, %s, p %g, kept", static_cast<int>(op), name_of(dtype), p.p);
  for (const int64_t d : kept) {
    std::printf(" %lld (%lld)", static_cast<long long>(sizes[d]),
                static_cast<long long>(x.stride(d)));
  }
  std::printf(", reduced");
  for (const int64_t d : gone) {
    std::printf(" %lld (%lld)", static_cast<long long>(sizes[d]),
                static_cast<long long>(x.stride(d)));
  }
  std::printf(", %d threads\n", parallel.num_threads());
  std::fflush(stdout);
  cpu::reduce(p, parallel);

  const bool exact = op != ReduceOp::kMean && op != ReduceOp::kNorm;
  Ints index(kept.size(), 0);
  do {
    std::vector<double> numbers;
    Ints place(sizes.size()), inner(gone.size(), 0);
    for (size_t i = 0; i < kept.size(); ++i) place[kept[i]] = index[i];
    do {
      for (size_t i = 0; i < gone.size(); ++i) place[gone[i]] = inner[i];
      numbers.push_back(x.get(place));
    } while (advance(inner, gone_sizes));
    const bool wraps = op == ReduceOp::kProd && !is_floating(dtype);
    const double value = wraps ? wrapped_product(numbers) : reduced(op, numbers, p.p);
    const double expected = rounded(value, out_dtype), got = out.get(index);
    const double near = exact ? 0 : 0x1p-7 * std::fabs(expected);
    require(got == expected || std::fabs(got - expected) <= near, "reduction", got, expected);
  } while (advance(index, kept_sizes));
}

}  // namespace xgemm::sanitize
