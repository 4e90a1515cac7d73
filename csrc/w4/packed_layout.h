// The packed W4 layout: the one index map from a weight (n, k) to its nibble, scale and zero.
//
// Shared by cpu/ and cuda/, mirrored in python/xgemm/formats/packed.py (a test holds the two equal)
// and described in docs/design/packed-layout.md. qweight is uint8 [ceil(N/64), row_bytes]:
//   row:   the units of 64 output columns, one for each 128 k; with group_size -1 then 64 scales
//          (and 64 zeros);
//   unit:  4 strips of 16 columns;
//   strip: 1024 bytes of codes, then scales [128/g][16] and, where the format has them, fp16 zeros
//          [128/g][16] (neither with group_size -1);
//   codes: 2 halves of 64 k, each 32 lanes x 16 bytes; word j of lane (gid, tig) is the A fragment
//   of
//          mma.m16n8k16 for the j-th 16 k, nibbles from the lowest: a0 a2 a4 a6 a1 a3 a5 a7.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace xgemm::w4 {

inline constexpr int kLayoutVersion = 1;
inline constexpr int64_t kRowColumns = 64;    // output columns of a row of qweight
inline constexpr int64_t kUnitK = 128;        // k of a unit
inline constexpr int64_t kStripColumns = 16;  // output columns of a strip
inline constexpr int64_t kStripCodeBytes = 1024;
inline constexpr int64_t kScaleBytes = 2;  // a scale (fp16 or bf16) or a zero (fp16)
inline constexpr int kSymmetricZero = 8;   // the zero point where the format stores none

struct Layout {
  int64_t n, k;
  int64_t group_size;  // 32, 64, 128, or -1: one group for all of K
  bool zeros;          // the format stores zero points

  XGEMM_HOST_DEVICE constexpr bool per_channel() const { return group_size == -1; }
  XGEMM_HOST_DEVICE constexpr int64_t rows() const { return ceil_div(n, kRowColumns); }
  XGEMM_HOST_DEVICE constexpr int64_t units() const { return ceil_div(k, kUnitK); }
  // Groups that a weight of K channels has, the last one possibly short.
  XGEMM_HOST_DEVICE constexpr int64_t groups() const {
    return per_channel() ? (k > 0 ? 1 : 0) : ceil_div(k, group_size);
  }
  XGEMM_HOST_DEVICE constexpr int64_t groups_per_unit() const {
    return per_channel() ? 0 : kUnitK / group_size;
  }
  XGEMM_HOST_DEVICE constexpr int64_t strip_bytes() const {
    return kStripCodeBytes + groups_per_unit() * kStripColumns * kScaleBytes * (zeros ? 2 : 1);
  }
  XGEMM_HOST_DEVICE constexpr int64_t unit_bytes() const {
    return strip_bytes() * (kRowColumns / kStripColumns);
  }
  XGEMM_HOST_DEVICE constexpr int64_t row_bytes() const {
    const int64_t tail = per_channel() ? kRowColumns * kScaleBytes * (zeros ? 2 : 1) : 0;
    return units() * unit_bytes() + tail;
  }
  XGEMM_HOST_DEVICE constexpr int64_t bytes() const { return rows() * row_bytes(); }

  // First byte of the strip that holds column n at unit u.
  XGEMM_HOST_DEVICE constexpr int64_t strip_offset(int64_t column, int64_t unit) const {
    return column / kRowColumns * row_bytes() + unit * unit_bytes() +
           column % kRowColumns / kStripColumns * strip_bytes();
  }

  // Index of the nibble of (column, channel): byte index times two, plus one for the high nibble.
  XGEMM_HOST_DEVICE constexpr int64_t nibble_index(int64_t column, int64_t channel) const {
    const int64_t half = channel % kUnitK / 64, word = channel % 64 / 16;
    const int64_t gid = column % 8, upper_row = column % 16 / 8;
    const int64_t tig = channel % 8 / 2, odd = channel % 2, upper_k = channel % 16 / 8;
    const int64_t nibble = upper_row + 2 * upper_k + 4 * odd;
    const int64_t byte = strip_offset(column, channel / kUnitK) + half * 512 +
                         (gid * 4 + tig) * 16 + word * 4 + nibble / 2;
    return byte * 2 + nibble % 2;
  }

  // First byte of the scale of (column, group).
  XGEMM_HOST_DEVICE constexpr int64_t scale_offset(int64_t column, int64_t group) const {
    if (per_channel()) {
      return column / kRowColumns * row_bytes() + units() * unit_bytes() +
             column % kRowColumns * kScaleBytes;
    }
    return strip_offset(column, group / groups_per_unit()) + kStripCodeBytes +
           (group % groups_per_unit() * kStripColumns + column % kStripColumns) * kScaleBytes;
  }

  // First byte of the zero point of (column, group); only where the format stores zeros.
  XGEMM_HOST_DEVICE constexpr int64_t zero_offset(int64_t column, int64_t group) const {
    const int64_t scales = per_channel() ? kRowColumns : groups_per_unit() * kStripColumns;
    return scale_offset(column, group) + scales * kScaleBytes;
  }
};

}  // namespace xgemm::w4
