#include "cpu/w4a16/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

#include "cpu/isa/convert.h"
#include "cpu/isa/isa.h"
#include "cpu/w4a16/dequant.h"

namespace xgemm::cpu::w4a16 {
namespace {

// stream_channel, as a table: [tig / 2][h][lane].
constexpr auto kChannels = [] {
  std::array<uint8_t, kHalfK> table{};
  for (int64_t i = 0; i < kHalfK; ++i) {
    table[i] = static_cast<uint8_t>(stream_channel(i / 32, i / 8 % 4, i % 8));
  }
  return table;
}();

template <typename Load>
void gather_row(const W4Problem& problem, int64_t row, Load load, float* values) {
  const int64_t k = problem.weight.layout.k, step = problem.x_col_stride;
  const int64_t base = row * problem.x_row_stride;
  if (problem.perm != nullptr) {
    for (int64_t i = 0; i < k; ++i) values[i] = load(base + problem.perm[i] * step);
  } else if (step == 1) {
    for (int64_t i = 0; i < k; ++i) values[i] = load(base + i);
  } else {
    for (int64_t i = 0; i < k; ++i) values[i] = load(base + i * step);
  }
}

// Inf or NaN where one of the values is. Magnitudes compare as integers.
float largest_magnitude(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(largest);
}

float sum_of(const float* values, int64_t count) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void arrange_row(const W4Problem& problem, int64_t row, int slot, RowBlock& block, float* values) {
  const w4::Layout& layout = problem.weight.layout;
  const int64_t padded = padded_k(problem);
  load_row(problem, row, values);
  const float largest = largest_magnitude(values, layout.k);
  block.finite[slot] = std::isfinite(largest);
  const float power = safe_power(largest);
  block.unscale[slot] = 1.0f / power;
  if (power != 1.0f) {
    for (int64_t i = 0; i < padded; ++i) values[i] *= power;
  }
  const int64_t group_size = layout.per_channel() ? padded : layout.group_size;
  for (int64_t group = 0; group < layout.groups(); ++group) {
    block.sums[group * block.rows + slot] = sum_of(values + group * group_size, group_size);
  }
  constexpr float kPower[4] = {1.0f, 0x1p-8f, 0x1p-16f, 0x1p-24f};
  const int64_t used = round_up<int64_t>(layout.k, kHalfK);
  for (int64_t half = 0; half < used; half += kHalfK) {
    for (int64_t i = 0; i < kHalfK; i += kLanes) {
      float* out = block.x + half * block.rows + (i / kLanes * block.rows + slot) * kLanes;
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        out[lane] = values[half + kChannels[i + lane]] * kPower[i / kLanes % 4];
      }
    }
  }
  // The last unit's second half, where K does not reach it: the same zeros for every slot.
  std::fill(block.x + used * block.rows, block.x + padded * block.rows, 0.0f);
}

// Keeps the blocks aligned.
int64_t padded_groups(const W4Problem& problem) {
  return round_up<int64_t>(problem.weight.layout.groups(), 16);
}

int64_t blocks_of(int64_t rows) { return ceil_div<int64_t>(rows, kMaxRows); }

// The rows and their sums, and for each block a row as it is loaded.
int64_t floats_of(const W4Problem& problem, int64_t rows) {
  return rows * (padded_k(problem) + padded_groups(problem)) + blocks_of(rows) * padded_k(problem);
}

}  // namespace

void load_row(const W4Problem& problem, int64_t row, float* values) {
  const w4::Layout& layout = problem.weight.layout;
  const auto* floats = static_cast<const float*>(problem.x);
  const auto* halves = static_cast<const uint16_t*>(problem.x);
  switch (problem.dtype) {
    case DType::kF16:
      gather_row(problem, row, [=](int64_t i) { return half_to_float(halves[i]); }, values);
      break;
    case DType::kBF16:
      gather_row(problem, row, [=](int64_t i) { return bf16_to_float(halves[i]); }, values);
      break;
    default:
      gather_row(problem, row, [=](int64_t i) { return floats[i]; }, values);
  }
  std::fill(values + layout.k, values + padded_k(problem), 0.0f);
}

// 2^28 times a code must not overflow, 2^-24 of a value not underflow.
float safe_power(float largest) {
  if (std::isfinite(largest) && largest > 0x1p80f) return 0x1p-60f;
  return largest != 0.0f && largest < 0x1p-60f ? 0x1p60f : 1.0f;
}

void check_perm(const W4Problem& problem) {
  if (problem.perm == nullptr) return;
  const int64_t k = problem.weight.layout.k;
  for (int64_t i = 0; i < k; ++i) {
    if (problem.perm[i] >= 0 && problem.perm[i] < k) continue;
    throw std::out_of_range("w4a16: perm must hold channels in [0, " + std::to_string(k) +
                            "), got perm[" + std::to_string(i) +
                            "]=" + std::to_string(problem.perm[i]));
  }
}

RowBlocks::RowBlocks(const W4Problem& problem, int64_t first, int64_t count,
                     const Parallel& parallel)
    : memory_(Slot::kArrangedRows, floats_of(problem, count)), blocks_(blocks_of(count)) {
  const int64_t padded = padded_k(problem), groups = padded_groups(problem);
  float* next = memory_.data();
  float* scratch = next + count * (padded + groups);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const int64_t done = static_cast<int64_t>(i) * kMaxRows;
    RowBlock& block = blocks_[i];
    block.rows = static_cast<int>(std::min<int64_t>(count - done, kMaxRows));
    block.x = next;
    block.sums = next + block.rows * padded;
    next += block.rows * (padded + groups);
  }
  parallel.for_each(blocks_of(count), [&](int64_t i) {
    for (int slot = 0; slot < blocks_[i].rows; ++slot) {
      arrange_row(problem, first + i * kMaxRows + slot, slot, blocks_[i], scratch + i * padded);
    }
  });
}

void multiply_non_finite(const W4Problem& problem, int64_t row, int64_t column, int64_t columns,
                         float* out) {
  const int64_t k = problem.weight.layout.k;
  const auto dequant = isa() != Isa::kGeneric ? dequant_half_avx2 : dequant_half_generic;
  std::vector<float> x(static_cast<size_t>(padded_k(problem)));
  load_row(problem, row, x.data());
  std::fill(out, out + columns, 0.0f);
  const auto finite = [](float value) { return std::isfinite(value); };
  for (int64_t channel = 0; channel < k; channel += kHalfK) {
    const int64_t end = std::min(channel + kHalfK, k);
    if (std::all_of(&x[channel], x.data() + end, finite)) continue;
    for (int64_t strip = 0; strip < columns; strip += kColumns) {
      alignas(64) float weights[kHalfK * kColumns];
      dequant(problem.weight, column + strip, channel, weights, kColumns);
      for (int64_t p = channel; p < end; ++p) {
        if (finite(x[p])) continue;
        const float* of_channel = weights + (p - channel) * kColumns;
        for (int64_t c = 0; c < kColumns; ++c) out[strip + c] += x[p] * of_channel[c];
      }
    }
  }
}

}  // namespace xgemm::cpu::w4a16
