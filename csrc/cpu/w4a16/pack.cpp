// Codes, scales and zeros <-> the packed layout, a row of 64 output columns at a time.
#include <cstring>

#include "cpu/w4a16/api.h"

namespace xgemm::cpu {
namespace {

using w4::Layout;

constexpr int64_t kHalfK = 64;
constexpr int64_t kHalfBytes = 512;

// Channel, within its half, and column, within its strip, of a nibble of word j of lane (gid, tig).
constexpr int64_t channel_of(int64_t tig, int64_t j, int64_t nibble) {
  return 16 * j + 2 * tig + (nibble & 2 ? 8 : 0) + (nibble & 4 ? 1 : 0);
}
constexpr int64_t column_of(int64_t gid, int64_t nibble) { return gid + (nibble & 1 ? 8 : 0); }

// The 128 words of half a strip: 16 columns from `column`, 64 channels from `channel`.
void pack_half(const Layout& layout, const uint8_t* codes, int64_t column, int64_t channel,
               uint8_t* out) {
  for (int64_t lane = 0; lane < 32; ++lane) {
    for (int64_t j = 0; j < 4; ++j) {
      uint32_t word = 0;
      for (int64_t nibble = 0; nibble < 8; ++nibble) {
        const int64_t n = column + column_of(lane / 4, nibble);
        const int64_t k = channel + channel_of(lane % 4, j, nibble);
        if (n >= layout.n || k >= layout.k) continue;
        word |= static_cast<uint32_t>(codes[n * layout.k + k] & 15) << (4 * nibble);
      }
      std::memcpy(out + lane * 16 + j * 4, &word, sizeof word);
    }
  }
}

void unpack_half(const Layout& layout, const uint8_t* in, int64_t column, int64_t channel,
                 uint8_t* codes) {
  for (int64_t lane = 0; lane < 32; ++lane) {
    for (int64_t j = 0; j < 4; ++j) {
      uint32_t word;
      std::memcpy(&word, in + lane * 16 + j * 4, sizeof word);
      for (int64_t nibble = 0; nibble < 8; ++nibble) {
        const int64_t n = column + column_of(lane / 4, nibble);
        const int64_t k = channel + channel_of(lane % 4, j, nibble);
        if (n >= layout.n || k >= layout.k) continue;
        codes[n * layout.k + k] = static_cast<uint8_t>(word >> (4 * nibble) & 15);
      }
    }
  }
}

// Calls half(column, channel, byte offset) for each half strip of a row of 64 columns.
template <typename Half>
void for_each_half(const Layout& layout, int64_t row, Half half) {
  for (int64_t unit = 0; unit < layout.units(); ++unit) {
    for (int64_t column = row * w4::kRowColumns; column < (row + 1) * w4::kRowColumns;
         column += w4::kStripColumns) {
      const int64_t strip = layout.strip_offset(column, unit);
      half(column, unit * w4::kUnitK, strip);
      half(column, unit * w4::kUnitK + kHalfK, strip + kHalfBytes);
    }
  }
}

// Calls parameter(column, group) for each scale and zero of the row that the weight really has.
template <typename Parameter>
void for_each_parameter(const Layout& layout, int64_t row, Parameter parameter) {
  const int64_t first = row * w4::kRowColumns;
  const int64_t last = first + w4::kRowColumns < layout.n ? first + w4::kRowColumns : layout.n;
  for (int64_t group = 0; group < layout.groups(); ++group) {
    for (int64_t column = first; column < last; ++column) parameter(column, group);
  }
}

}  // namespace

void w4_pack(const Layout& layout, const uint8_t* codes, const uint16_t* scales,
             const uint16_t* zeros, uint8_t* packed, const Parallel& parallel) {
  parallel.for_each(layout.rows(), [&](int64_t row) {
    std::memset(packed + row * layout.row_bytes(), 0, static_cast<size_t>(layout.row_bytes()));
    for_each_half(layout, row, [&](int64_t column, int64_t channel, int64_t offset) {
      pack_half(layout, codes, column, channel, packed + offset);
    });
    for_each_parameter(layout, row, [&](int64_t column, int64_t group) {
      const int64_t i = group * layout.n + column;
      std::memcpy(packed + layout.scale_offset(column, group), scales + i, w4::kScaleBytes);
      if (layout.zeros) {
        std::memcpy(packed + layout.zero_offset(column, group), zeros + i, w4::kScaleBytes);
      }
    });
  });
}

void w4_unpack(const Layout& layout, const uint8_t* packed, uint8_t* codes, uint16_t* scales,
               uint16_t* zeros, const Parallel& parallel) {
  parallel.for_each(layout.rows(), [&](int64_t row) {
    for_each_half(layout, row, [&](int64_t column, int64_t channel, int64_t offset) {
      unpack_half(layout, packed + offset, column, channel, codes);
    });
    for_each_parameter(layout, row, [&](int64_t column, int64_t group) {
      const int64_t i = group * layout.n + column;
      std::memcpy(scales + i, packed + layout.scale_offset(column, group), w4::kScaleBytes);
      if (layout.zeros) {
        std::memcpy(zeros + i, packed + layout.zero_offset(column, group), w4::kScaleBytes);
      }
    });
  });
}

}  // namespace xgemm::cpu
