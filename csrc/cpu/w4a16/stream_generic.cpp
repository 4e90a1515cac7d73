// The streaming kernel without vector instructions: the same sums as stream_avx2.
#include <cstring>

#include "cpu/isa/convert.h"
#include "cpu/w4a16/dequant.h"
#include "cpu/w4a16/stream.h"

namespace xgemm::cpu::w4a16 {
namespace {

// dot[row][lane] += one column's codes times X over half a strip; `upper`: columns 8 .. 15.
void dot_half(const uint8_t* codes, bool upper, const float* x, int rows,
              float dot[kMaxRows][kLanes]) {
  for (int64_t t = 0; t < 2; ++t) {
    uint32_t words[kLanes];
    std::memcpy(words, codes + 32 * t, sizeof words);
    for (int64_t h = 0; h < 4; ++h) {
      float code[kLanes];
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const uint32_t nibble = words[lane] >> (upper ? 4 : 0) & (15u << (8 * h));
        code[lane] = static_cast<float>(static_cast<int32_t>(nibble));
      }
      for (int row = 0; row < rows; ++row, x += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) dot[row][lane] += code[lane] * x[lane];
      }
    }
  }
}

}  // namespace

void stream_generic(const StreamTask& task) {
  const W4Weight& weight = *task.weight;
  const w4::Layout& layout = weight.layout;
  const int rows = task.block->rows;
  for (int64_t c = 0; c < task.strips * kColumns; ++c) {
    const int64_t column = task.column + c;
    float total[kMaxRows] = {}, offset[kMaxRows] = {}, dot[kMaxRows][kLanes] = {};
    // Adds dot, over lanes whose j (lane % 4) is in [first, last), with the scale of a group.
    const auto close_group = [&](int64_t group, int64_t first, int64_t last) {
      if (group >= layout.groups()) return;  // padding: its scale may be anything
      const float scale =
          load_scale(weight.data + layout.scale_offset(column, group), weight.bf16_scales);
      const float zero = layout.zeros
                             ? load_scale(weight.data + layout.zero_offset(column, group), false)
                             : static_cast<float>(w4::kSymmetricZero);
      for (int row = 0; row < rows; ++row) {
        float sum = 0.0f;
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          if (lane % 4 < first || lane % 4 >= last) continue;
          sum += dot[row][lane];
          dot[row][lane] = 0.0f;
        }
        total[row] += sum * scale;
        offset[row] += scale * zero * task.block->sums[group * rows + row];
      }
    };
    for (int64_t channel = 0; channel < layout.units() * w4::kUnitK; channel += kHalfK) {
      dot_half(half_codes(weight, column / kColumns * kColumns, channel) + column % 8 * 64,
               column % kColumns >= 8, task.block->x + channel * rows, rows, dot);
      const int64_t next = channel + kHalfK;
      if (layout.group_size == 32) {
        close_group(channel / 32, 0, 2);
        close_group(channel / 32 + 1, 2, 4);
      } else if (!layout.per_channel() && next % layout.group_size == 0) {
        close_group(channel / layout.group_size, 0, 4);
      }
    }
    if (layout.per_channel()) close_group(0, 0, 4);
    for (int row = 0; row < rows; ++row) {
      task.out[row * w4::kRowColumns + c] = total[row] - offset[row];
    }
  }
}

}  // namespace xgemm::cpu::w4a16
