#include "cpu/w4a16/digits.h"

#include <algorithm>
#include <cmath>

#include "cpu/w4a16/rows.h"

namespace xgemm::cpu::w4a16 {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Floats that a row takes: its digits, a power and a sum for each group.
struct RowFloats {
  int64_t digits, groups, total;
  explicit RowFloats(const W4Problem& problem) {
    const w4::Layout& layout = problem.weight.layout;
    digits = layout.units() * w4::kUnitK * digits_of(problem.dtype) / kFloatBytes;
    groups = layout.units() * digit_groups(layout);
    total = round_up<int64_t>(digits + 2 * groups, 16);
  }
};

int64_t padded_k(const W4Problem& problem) { return problem.weight.layout.units() * w4::kUnitK; }

void arrange(const W4Problem& problem, int64_t row, int slot, DigitBlock& block) {
  const w4::Layout& layout = problem.weight.layout;
  const Buffer scratch(Slot::kPartial, padded_k(problem));
  float* values = scratch.data();
  const void* x = static_cast<const char*>(problem.x) +
                  row * problem.x_row_stride * element_size(problem.dtype);
  float largest;
  if (problem.perm == nullptr && problem.x_col_stride == 1) {
    largest = load_floats_avx512(x, problem.dtype, layout.k, values);
  } else {
    load_row(problem, row, values);
    largest = load_floats_avx512(values, DType::kF32, padded_k(problem), values);
  }
  block.finite[slot] = std::isfinite(largest);
  if (!block.finite[slot]) std::fill(values, values + padded_k(problem), 0.0f);
  const float power = safe_power(largest);
  block.unscale[slot] = 1.0f / power;
  arrange_digits_avx512(layout, values, power, slot, block);
}

}  // namespace

RowDigits::RowDigits(const W4Problem& problem, int64_t first, int64_t count,
                     const Parallel& parallel)
    : memory_(Slot::kArrangedRows, count * RowFloats(problem).total),
      blocks_(static_cast<size_t>(ceil_div<int64_t>(count, kDigitRows))) {
  const RowFloats row(problem);
  float* next = memory_.data();
  for (DigitBlock& block : blocks_) {
    const int64_t done = (&block - blocks_.data()) * kDigitRows;
    block.rows = static_cast<int>(std::min<int64_t>(count - done, kDigitRows));
    block.digits = digits_of(problem.dtype);
    block.x = reinterpret_cast<uint8_t*>(next);
    block.power = next + block.rows * row.digits;
    block.sums = block.power + block.rows * row.groups;
    next += block.rows * row.total;
  }
  parallel.for_each(count, [&](int64_t i) {
    arrange(problem, first + i, static_cast<int>(i % kDigitRows), blocks_[i / kDigitRows]);
  });
}

}  // namespace xgemm::cpu::w4a16
