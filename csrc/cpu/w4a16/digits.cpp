#include "cpu/w4a16/digits.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cpu/w4a16/rows.h"

namespace xgemm::cpu::w4a16 {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Floats that a row takes: its digits, a power and a sum for each group.
struct RowFloats {
  int64_t digits, groups, total;
  RowFloats(const w4::Layout& layout, int count) {
    digits = layout.units() * w4::kUnitK * count / kFloatBytes;
    groups = layout.units() * digit_groups(layout);
    total = round_up<int64_t>(digits + 2 * groups, 16);
  }
};

bool has_outlier(const W4Problem& problem, int64_t row) {
  const Buffer scratch(Slot::kPartial, padded_k(problem));
  load_row_avx512(problem, row, scratch.data());
  const int64_t size = w4::kUnitK / digit_groups(problem.weight.layout);
  return has_outlier_avx512(scratch.data(), padded_k(problem), size,
                            max_digit_spread(problem.dtype));
}

// Of the rows [first, first + count).
int choose_digits(const W4Problem& problem, int64_t first, int64_t count,
                  const Parallel& parallel) {
  const int least = digits_of(problem.dtype);
  if (least == 3 || problem.batch_invariant) return 3;
  std::atomic<bool> found{false};
  const auto look = [&](int64_t i) {
    if (!found.load(std::memory_order_relaxed) && has_outlier(problem, first + i)) {
      found.store(true, std::memory_order_relaxed);
    }
  };
  // Few rows are looked at sooner than other threads wake.
  count <= kDigitRows ? Parallel(1).for_each(count, look) : parallel.for_each(count, look);
  return found.load() ? 3 : least;
}

void arrange(const W4Problem& problem, int64_t row, int slot, DigitBlock& block) {
  const w4::Layout& layout = problem.weight.layout;
  const Buffer scratch(Slot::kPartial, padded_k(problem));
  float* values = scratch.data();
  const float largest = load_row_avx512(problem, row, values);
  block.finite[slot] = std::isfinite(largest);
  if (!block.finite[slot]) std::fill(values, values + padded_k(problem), 0.0f);
  const float power = safe_power(largest);
  block.unscale[slot] = 1.0f / power;
  arrange_digits_avx512(layout, values, power, slot, block);
}

}  // namespace

RowDigits::RowDigits(const W4Problem& problem, int64_t first, int64_t count,
                     const Parallel& parallel)
    : digits_(choose_digits(problem, first, count, parallel)),
      memory_(Slot::kArrangedRows, count * RowFloats(problem.weight.layout, digits_).total),
      blocks_(static_cast<size_t>(ceil_div<int64_t>(count, kDigitRows))) {
  const RowFloats row(problem.weight.layout, digits_);
  float* next = memory_.data();
  for (DigitBlock& block : blocks_) {
    const int64_t done = (&block - blocks_.data()) * kDigitRows;
    block.rows = static_cast<int>(std::min<int64_t>(count - done, kDigitRows));
    block.digits = digits_;
    block.x = reinterpret_cast<uint8_t*>(next);
    block.power = next + block.rows * row.digits;
    block.sums = block.power + block.rows * row.groups;
    next += block.rows * row.total;
  }
  const auto one = [&](int64_t i) {
    arrange(problem, first + i, static_cast<int>(i % kDigitRows), blocks_[i / kDigitRows]);
  };
  const bool alone = count * padded_k(problem) <= kAloneElements;
  alone ? Parallel(1).for_each(count, one) : parallel.for_each(count, one);
}

}  // namespace xgemm::cpu::w4a16
