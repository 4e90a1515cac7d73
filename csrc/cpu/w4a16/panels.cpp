// Packed 4-bit weights as the B operand of the blocked driver, in both directions.
#include <algorithm>

#include "cpu/isa/convert.h"
#include "cpu/isa/isa.h"
#include "cpu/w4a16/api.h"
#include "cpu/w4a16/dequant.h"

namespace xgemm::cpu {
namespace w4a16 {

void dequant_half_generic(const W4Weight& weight, int64_t column, int64_t channel, float* out,
                          int64_t stride) {
  const w4::Layout& layout = weight.layout;
  for (int64_t p = 0; p < kHalfK; ++p) {
    const int64_t group = group_of(layout, channel + p);
    for (int64_t c = 0; c < kColumns; ++c) {
      const int64_t nibble = layout.nibble_index(column + c, channel + p);
      const int code = weight.data[nibble / 2] >> (nibble % 2 * 4) & 15;
      const float scale =
          load_scale(weight.data + layout.scale_offset(column + c, group), weight.bf16_scales);
      if (weight.fp4) {
        out[p * stride + c] = fp4_value(code) * scale;
        continue;
      }
      const float zero =
          layout.zeros ? load_scale(weight.data + layout.zero_offset(column + c, group), false)
                       : static_cast<float>(w4::kSymmetricZero);
      out[p * stride + c] = (static_cast<float>(code) - zero) * scale;
    }
  }
}

void dequant_half_transposed_generic(const W4Weight& weight, int64_t column, int64_t channel,
                                     float* const out[4], int64_t stride) {
  float tile[kHalfK * kColumns];
  dequant_half_generic(weight, column, channel, tile, kColumns);
  for (int64_t p = 0; p < kHalfK; ++p) {
    for (int64_t c = 0; c < kColumns; ++c)
      out[p / 16][c * stride + p % 16] = tile[p * kColumns + c];
  }
}

}  // namespace w4a16

namespace {

using w4a16::kColumns;
using w4a16::kHalfK;

// Rows [0, depth) of micro-panels of nr columns; element (p, j) is at the given place.
struct PanelView {
  float* data;
  int64_t depth, nr;
  float* at(int64_t p, int64_t j) const { return data + j / nr * depth * nr + p * nr + j % nr; }
  // The columns that fill up the last panel.
  void clear_padding(int64_t columns) const {
    for (int64_t j = columns; j < round_up(columns, nr); ++j) {
      for (int64_t p = 0; p < depth; ++p) *at(p, j) = 0.0f;
    }
  }
};

// The part of a tile of `size` that starts at `tile` which lies in [begin, end), tile-relative.
struct Overlap {
  int64_t first, last;
  Overlap(int64_t tile, int64_t size, int64_t begin, int64_t end)
      : first(std::max<int64_t>(begin - tile, 0)), last(std::min(end - tile, size)) {}
  bool whole(int64_t size) const { return first == 0 && last == size; }
};

// Fetches the half strip that comes two after (column, channel) when strips are read one after the
// other, each over [k0, k0 + kc): its units lie a page apart, which hides them from the hardware's
// prefetcher.
void prefetch_later_half(const W4Weight& weight, int64_t column, int64_t channel, int64_t k0,
                         int64_t kc, int64_t column_end) {
  int64_t later = channel + 2 * kHalfK;
  if (later >= k0 + kc) {
    later = std::min(k0 / kHalfK * kHalfK + channel % w4::kUnitK, channel);
    column += kColumns;
    if (column >= column_end) return;
  }
  const uint8_t* codes = w4a16::half_codes(weight, column, later);
  for (int64_t byte = 0; byte < w4a16::kHalfBytes; byte += 64) __builtin_prefetch(codes + byte);
}

}  // namespace

void W4Panels::pack(int64_t k0, int64_t kc, int64_t n0, int64_t nc, int64_t nr,
                    float* panels) const {
  const PanelView view{panels, kc, nr};
  const auto dequant =
      isa() != Isa::kGeneric ? w4a16::dequant_half_avx2 : w4a16::dequant_half_generic;
  for (int64_t column = n0 / kColumns * kColumns; column < n0 + nc; column += kColumns) {
    const Overlap columns(column, kColumns, n0, n0 + nc);
    // A strip that lies in one panel, 16 whole columns, is written in place.
    const bool one_panel = columns.whole(kColumns) && (column - n0) % nr + kColumns <= nr;
    for (int64_t channel = k0 / kHalfK * kHalfK; channel < k0 + kc; channel += kHalfK) {
      const Overlap channels(channel, kHalfK, k0, k0 + kc);
      prefetch_later_half(weight_, column, channel, k0, kc, n0 + nc);
      if (one_panel && channels.whole(kHalfK)) {
        dequant(weight_, column, channel, view.at(channel - k0, column - n0), nr);
        continue;
      }
      alignas(64) float tile[kHalfK * kColumns];
      dequant(weight_, column, channel, tile, kColumns);
      for (int64_t c = columns.first; c < columns.last; ++c) {
        float* out = view.at(channel + channels.first - k0, column + c - n0);
        for (int64_t p = channels.first; p < channels.last; ++p, out += nr) {
          *out = tile[p * kColumns + c];
        }
      }
    }
  }
  view.clear_padding(nc);
}

void W4PanelsTransposed::pack(int64_t k0, int64_t kc, int64_t n0, int64_t nc, int64_t nr,
                              float* panels) const {
  const PanelView view{panels, kc, nr};
  const auto dequant = isa() != Isa::kGeneric ? w4a16::dequant_half_transposed_avx2
                                              : w4a16::dequant_half_transposed_generic;
  for (int64_t column = k0 / kColumns * kColumns; column < k0 + kc; column += kColumns) {
    const Overlap columns(column, kColumns, k0, k0 + kc);
    for (int64_t channel = n0 / kHalfK * kHalfK; channel < n0 + nc; channel += kHalfK) {
      const Overlap channels(channel, kHalfK, n0, n0 + nc);
      float* out[4];
      // 16 channels that lie in one panel are written in place.
      if (columns.whole(kColumns) && channels.whole(kHalfK) && nr % 16 == 0 &&
          (channel - n0) % 16 == 0) {
        for (int64_t j = 0; j < 4; ++j) out[j] = view.at(column - k0, channel - n0 + 16 * j);
        dequant(weight_, column, channel, out, nr);
        continue;
      }
      alignas(64) float tile[kColumns * kHalfK];
      for (int64_t j = 0; j < 4; ++j) out[j] = tile + 16 * j;
      dequant(weight_, column, channel, out, kHalfK);
      for (int64_t p = channels.first; p < channels.last; ++p) {
        float* to = view.at(column + columns.first - k0, channel + p - n0);
        for (int64_t c = columns.first; c < columns.last; ++c, to += nr) {
          *to = tile[c * kHalfK + p];
        }
      }
    }
  }
  view.clear_padding(nc);
}

}  // namespace xgemm::cpu
