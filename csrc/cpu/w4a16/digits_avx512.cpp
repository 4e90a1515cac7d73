#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "cpu/isa/avx512.h"
#include "cpu/w4a16/codes_avx512.h"
#include "cpu/w4a16/digits.h"

namespace xgemm::cpu::w4a16 {
namespace {

constexpr int kVectors = 32;  // of a strip's unit: 16 columns of 4 channels each
constexpr int kTileRows = 4;  // rows whose sums are in registers

// -- codes to bytes --

// out[tig]: 16 columns of 4 channels each, from the words of one j.
XGEMM_INLINE_VNNI void decode(const __m512i words[2], __m512i out[4]) {
  const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 2
  for (int pair = 0; pair < 2; ++pair) {
    // Lanes: two tigs of gids 0 .. 3, the same two of gids 4 .. 7.
    const __m512i both = pair == 0 ? _mm512_shuffle_i32x4(words[0], words[1], 0x44)
                                   : _mm512_shuffle_i32x4(words[0], words[1], 0xee);
    const __m512i low = _mm512_and_si512(both, mask);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi32(both, 4), mask);
    out[2 * pair] = _mm512_shuffle_i32x4(low, high, 0x88);
    out[2 * pair + 1] = _mm512_shuffle_i32x4(low, high, 0xdd);
  }
}

// out[half][j][tig] of a strip's unit.
XGEMM_INLINE_VNNI void decode_unit(const uint8_t* strip, __m512i* out) {
  for (int half = 0; half < 2; ++half) {
    __m512i words[4][2];
    fetch_half(strip + half * kHalfBytes);
    load_half(strip + half * kHalfBytes, words);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) decode(words[j], out + half * 16 + 4 * j);
  }
}

// -- the product --

// Scales and zero points of 16 columns for one group.
struct Affine {
  __m512 scale, zero;
};

// Rows of digits of one group, and where their sums go.
struct GroupRows {
  const uint8_t* x;  // a row's digits after those of the row before
  const float* power;
  const float* sums;
  float* totals;  // w4::kRowColumns apart
};

// sum + the products of 4 unsigned and 4 signed bytes in each lane. gcc 12 would broadcast the four
// in an instruction of its own.
XGEMM_INLINE_VNNI __m512i dot_bytes(__m512i sum, __m512i codes, const uint8_t* four) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(codes), "m"(*reinterpret_cast<const uint32_t*>(four)));
  return sum;
}

// The sums of kRows rows over a group. An instruction's sum is there after 4 cycles, so few rows
// have several chains of each digit.
template <int kDigits, int kRows>
struct GroupSums {
  static constexpr int kChains = kRows == 1 ? 2 : 1;
  __m512i chains[kChains][kRows][kDigits];

  XGEMM_INLINE_VNNI void clear() {
#pragma GCC unroll 4
    for (auto& chain : chains) {
#pragma GCC unroll 4
      for (auto& row : chain) {
#pragma GCC unroll 3
        for (__m512i& digit : row) digit = _mm512_setzero_si512();
      }
    }
  }

  // Where the digits of the i-th 4 channels, [half][j][tig], are: [half][tig][j].
  static constexpr int place_of(int i) { return i / 16 * 64 + i % 4 * 16 + i % 16 / 4 * 4; }

  // The 4 channels of which the digits are at x + place_of(i).
  XGEMM_INLINE_VNNI void add(__m512i code, int i, const uint8_t* x) {
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 3
      for (int digit = 0; digit < kDigits; ++digit) {
        __m512i& sum = chains[i % kChains][row][digit];
        sum = dot_bytes(sum, code, x + (row * kDigits + digit) * w4::kUnitK + place_of(i));
      }
    }
  }

  // totals += scale 2^e (dot(code, q) - zero sum(q)).
  XGEMM_INLINE_VNNI void finish(const Affine& affine, const GroupRows& group) const {
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      __m512i sums[kDigits];
#pragma GCC unroll 3
      for (int digit = 0; digit < kDigits; ++digit) {
        sums[digit] = chains[0][row][digit];
#pragma GCC unroll 3
        for (int chain = 1; chain < kChains; ++chain) {
          sums[digit] = _mm512_add_epi32(sums[digit], chains[chain][row][digit]);
        }
      }
      __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(sums[1], 8), sums[0]));
      if constexpr (kDigits == 3) {
        dot = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[2]), _mm512_set1_ps(65536.0f), dot);
      }
      dot = _mm512_fnmadd_ps(affine.zero, _mm512_set1_ps(group.sums[row]), dot);
      float* total = group.totals + row * w4::kRowColumns;
      const __m512 scale = _mm512_mul_ps(affine.scale, _mm512_set1_ps(group.power[row]));
      _mm512_storeu_ps(total, _mm512_fmadd_ps(dot, scale, _mm512_loadu_ps(total)));
    }
  }
};

template <int kDigits, int kRows>
XGEMM_INLINE_VNNI void dot_group(const __m512i* codes, int count, const Affine& affine,
                                 const GroupRows& group) {
  using Sums = GroupSums<kDigits, kRows>;
  Sums sums;
  sums.clear();
  for (int first = 0; first < count; first += 8) {
    const uint8_t* x = group.x + Sums::place_of(first);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) sums.add(_mm512_load_si512(codes + first + i), i, x);
  }
  sums.finish(affine, group);
}

// All rows of a block times one group of a strip.
template <int kDigits>
XGEMM_TARGET_VNNI void multiply_group(const __m512i* codes, int count, const Affine& affine,
                                      GroupRows group, int rows) {
  static_assert(kTileRows == 4);
  for (; rows >= kTileRows; rows -= kTileRows) {
    dot_group<kDigits, kTileRows>(codes, count, affine, group);
    group.x += kTileRows * kDigits * w4::kUnitK;
    group.power += kTileRows;
    group.sums += kTileRows;
    group.totals += kTileRows * w4::kRowColumns;
  }
  switch (rows) {
    case 1:
      return dot_group<kDigits, 1>(codes, count, affine, group);
    case 2:
      return dot_group<kDigits, 2>(codes, count, affine, group);
    case 3:
      return dot_group<kDigits, 3>(codes, count, affine, group);
    default:
      return;
  }
}

// What a task needs of the layout, whose arithmetic divides, and of the rows.
struct Stream {
  const W4Weight& weight;
  const DigitBlock& block;
  int64_t units, unit_bytes, strip_bytes, groups, valid_groups;
  bool per_channel;

  explicit Stream(const DigitTask& task) : weight(*task.weight), block(*task.block) {
    const w4::Layout& layout = weight.layout;
    units = layout.units();
    unit_bytes = layout.unit_bytes();
    strip_bytes = layout.strip_bytes();
    groups = digit_groups(layout);
    per_channel = layout.per_channel();
    valid_groups = per_channel ? units : layout.groups();
  }

  XGEMM_INLINE_VNNI Affine affine(const uint8_t* strip, int64_t group) const {
    if (per_channel) return {_mm512_set1_ps(1.0f), _mm512_setzero_ps()};
    const uint8_t* scales = strip + w4::kStripCodeBytes + group * kColumns * w4::kScaleBytes;
    return {load_16(scales, weight.bf16_scales),
            weight.layout.zeros ? load_16(scales + groups * kColumns * w4::kScaleBytes, false)
                                : _mm512_set1_ps(w4::kSymmetricZero)};
  }

  XGEMM_INLINE_VNNI GroupRows rows(int64_t unit, int64_t group, float* totals) const {
    const int64_t index = (unit * groups + group) * block.rows;
    const int64_t first = groups == 4 ? group / 2 * kHalfK + group % 2 * 8 : group * kHalfK;
    return {block.x + unit * block.rows * block.digits * w4::kUnitK + first, block.power + index,
            block.sums + index, totals};
  }
};

// Up to four rows: codes go from the registers that they are decoded in into the products.
template <int kDigits, int kRows, int kGroups>
XGEMM_INLINE_VNNI void stream_unit(const Stream& stream, const uint8_t* strip, int64_t unit,
                                   float* totals) {
  constexpr int kVectorsPerGroup = kVectors / kGroups;
  GroupSums<kDigits, kRows> sums;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m512i words[4][2];
    fetch_half(strip + half * kHalfBytes);
    load_half(strip + half * kHalfBytes, words);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int vector = half * 16 + 4 * j, group = vector / kVectorsPerGroup;
      if (unit * kGroups + group >= stream.valid_groups) return;  // padding
      const GroupRows rows = stream.rows(unit, group, totals);
      const int first = vector % kVectorsPerGroup;
      if (first == 0) sums.clear();
      __m512i codes[4];
      decode(words[j], codes);
#pragma GCC unroll 4
      for (int tig = 0; tig < 4; ++tig) sums.add(codes[tig], first + tig, rows.x);
      if (first + 4 == kVectorsPerGroup) sums.finish(stream.affine(strip, group), rows);
    }
  }
}

template <int kDigits, int kRows, int kGroups>
XGEMM_TARGET_VNNI void stream_few(const DigitTask& task) {
  const Stream stream(task);
  const uint8_t* first = stream.weight.data + stream.weight.layout.strip_offset(task.column, 0);
  for (int64_t unit = 0; unit < stream.units; ++unit) {
    for (int64_t i = 0; i < task.strips; ++i) {
      const uint8_t* strip = first + unit * stream.unit_bytes + i * stream.strip_bytes;
      stream_unit<kDigits, kRows, kGroups>(stream, strip, unit, task.out + i * kColumns);
    }
  }
}

template <int kDigits, int kRows>
void stream_few(const DigitTask& task) {
  switch (digit_groups(task.weight->layout)) {
    case 1:
      return stream_few<kDigits, kRows, 1>(task);
    case 2:
      return stream_few<kDigits, kRows, 2>(task);
    default:
      return stream_few<kDigits, kRows, 4>(task);
  }
}

// More rows: a strip's unit is decoded once, into the L1 cache.
template <int kDigits>
XGEMM_TARGET_VNNI void stream_many(const DigitTask& task) {
  const Stream stream(task);
  const uint8_t* first = stream.weight.data + stream.weight.layout.strip_offset(task.column, 0);
  const int vectors = static_cast<int>(kVectors / stream.groups);
  alignas(64) __m512i codes[kVectors];
  // Unit by unit over all strips: the bytes of a row of qweight are read in their order.
  for (int64_t unit = 0; unit < stream.units; ++unit) {
    for (int64_t i = 0; i < task.strips; ++i) {
      const uint8_t* strip = first + unit * stream.unit_bytes + i * stream.strip_bytes;
      decode_unit(strip, codes);
      for (int64_t g = 0; g < stream.groups; ++g) {
        if (unit * stream.groups + g >= stream.valid_groups) break;  // padding
        multiply_group<kDigits>(codes + g * vectors, vectors, stream.affine(strip, g),
                                stream.rows(unit, g, task.out + i * kColumns), task.block->rows);
      }
    }
  }
}

template <int kDigits>
void stream(const DigitTask& task) {
  std::fill(task.out, task.out + task.block->rows * w4::kRowColumns, 0.0f);
  switch (task.block->rows) {
    case 1:
      return stream_few<kDigits, 1>(task);
    case 2:
      return stream_few<kDigits, 2>(task);
    case 3:
      return stream_few<kDigits, 3>(task);
    case 4:
      return stream_few<kDigits, 4>(task);
    default:
      return stream_many<kDigits>(task);
  }
}

// One scale and zero point for all of K: they come in last.
XGEMM_TARGET_VNNI void finish_per_channel(const DigitTask& task) {
  const W4Weight& weight = *task.weight;
  for (int64_t i = 0; i < task.strips; ++i) {
    const int64_t column = task.column + i * kColumns;
    const __m512 scale =
        load_16(weight.data + weight.layout.scale_offset(column, 0), weight.bf16_scales);
    const __m512 zero = weight.layout.zeros
                            ? load_16(weight.data + weight.layout.zero_offset(column, 0), false)
                            : _mm512_set1_ps(w4::kSymmetricZero);
    for (int row = 0; row < task.block->rows; ++row) {
      float* out = task.out + row * w4::kRowColumns + i * kColumns;
      const __m512 sum = _mm512_set1_ps(task.block->total[row]);
      _mm512_storeu_ps(out,
                       _mm512_mul_ps(_mm512_fnmadd_ps(zero, sum, _mm512_loadu_ps(out)), scale));
    }
  }
}

}  // namespace

void stream_digits_avx512(const DigitTask& task) {
  const DigitBlock& block = *task.block;
  if (block.digits == 3) {
    stream<3>(task);
  } else {
    block.rows == 1 ? stream_one_row_avx512(task) : stream<2>(task);
  }
  if (task.weight->layout.per_channel() && task.weight->layout.groups() > 0) {
    finish_per_channel(task);
  }
}

}  // namespace xgemm::cpu::w4a16
