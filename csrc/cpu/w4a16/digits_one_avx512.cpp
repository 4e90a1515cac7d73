// One row of two digits: decoding is half of the work, so its shuffles count.
#include <immintrin.h>

#include "cpu/isa/avx512.h"
#include "cpu/w4a16/codes_avx512.h"
#include "cpu/w4a16/digits.h"

namespace xgemm::cpu::w4a16 {
namespace {

constexpr int kDigits = 2, kTigs = 4;
constexpr int kUppers = 2;  // gids 0 .. 3 and 4 .. 7

// Strips are fetched into the L2 cache so many units ahead. (Zen 4, cycles for 128 weights from
// memory and one row: 13; two to eight units ahead 13 to 14, into the L1 cache, which waits for
// fewer lines at a time, 16 to 22. Of more rows, or three digits, 1.05 to 1.2 of the time.)
constexpr int64_t kUnitsAhead = 4;

// The cache lines of a strip's codes, scales and zero points, at most.
template <int kGroups>
constexpr int kStripLines = kGroups == 4 ? 20 : 18;

template <int kLines>
XGEMM_INLINE_AVX512 void fetch_lines(const uint8_t* bytes) {
#pragma GCC unroll 20
  for (int line = 0; line < kLines; ++line) _mm_prefetch(bytes + 64 * line, _MM_HINT_T1);
}

// Bytes of half a strip's unit for four gids: [tig][gid][j], 4 bytes each. A byte is the code of
// column gid and 16 times that of gid + 8.
struct Codes {
  __m512i both[kTigs];
  __m512i high[kTigs];  // without the former
};

XGEMM_INLINE_VNNI __m512i load_pair(const uint8_t* first, const uint8_t* second) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second));
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

// gids: the first of four, which are 64 bytes apart.
XGEMM_INLINE_VNNI void load_codes(const uint8_t* gids, Codes& codes) {
#pragma GCC unroll 2
  for (int tig = 0; tig < kTigs; tig += 2) {
    const uint8_t* from = gids + 16 * tig;
    const __m512i a = load_pair(from, from + 64), b = load_pair(from + 128, from + 192);
    codes.both[tig] = _mm512_shuffle_i32x4(a, b, 0x88);
    codes.both[tig + 1] = _mm512_shuffle_i32x4(a, b, 0xdd);
  }
#pragma GCC unroll 4
  for (int tig = 0; tig < kTigs; ++tig) {
    codes.high[tig] = _mm512_and_si512(codes.both[tig], _mm512_set1_epi8(-16));
  }
}

// The sums of four gids, [gid][j]: of both nibbles, and of the high one alone.
struct Sums {
  __m512i both, high;
};

// One digit of half a unit, [tig], each broadcast to the gids.
struct Digit {
  __m512i words[kTigs];
};
XGEMM_INLINE_VNNI Digit load_digit(const uint8_t* x) {
  Digit digit;
#pragma GCC unroll 4
  for (int tig = 0; tig < kTigs; ++tig) {
    digit.words[tig] =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + 16 * tig)));
  }
  return digit;
}

// sums += the products with one digit.
XGEMM_INLINE_VNNI void add_digit(const Codes* codes, const Digit& digit, Sums* sums) {
#pragma GCC unroll 4
  for (int tig = 0; tig < kTigs; ++tig) {
#pragma GCC unroll 2
    for (int u = 0; u < kUppers; ++u) {
      sums[u].both = _mm512_dpbusd_epi32(sums[u].both, codes[u].both[tig], digit.words[tig]);
      sums[u].high = _mm512_dpbusd_epi32(sums[u].high, codes[u].high[tig], digit.words[tig]);
    }
  }
}

// Lanes 0 and 2, or 1 and 3, of each 128 bits of two vectors.
XGEMM_INLINE_VNNI __m512i even_words(__m512i a, __m512i b) {
  return _mm512_castps_si512(
      _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88));
}
XGEMM_INLINE_VNNI __m512i odd_words(__m512i a, __m512i b) {
  return _mm512_castps_si512(
      _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd));
}

// The sums of 16 columns for each group of half a unit.
template <int kCount>
struct ColumnSums {
  __m512i of[kCount];
};

// Lanes are [gid % 4][gid / 4, nibble] before, and high nibbles 16 times too large.
XGEMM_INLINE_VNNI __m512i by_column(__m512i sums) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
  const __m512i sixteenth = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
  return _mm512_srav_epi32(_mm512_permutexvar_epi32(order, sums), sixteenth);
}

template <int kCount>
XGEMM_INLINE_VNNI ColumnSums<kCount> add_words(const Sums* sums) {
  __m512i pairs[kUppers];  // j = 0, 1 and j = 2, 3
#pragma GCC unroll 2
  for (int u = 0; u < kUppers; ++u) {
    const __m512i low = _mm512_sub_epi32(sums[u].both, sums[u].high);
    pairs[u] = _mm512_add_epi32(even_words(low, sums[u].high), odd_words(low, sums[u].high));
  }
  const __m512i first = even_words(pairs[0], pairs[1]), second = odd_words(pairs[0], pairs[1]);
  if constexpr (kCount == 2) return {{by_column(first), by_column(second)}};
  return {{by_column(_mm512_add_epi32(first, second))}};
}

template <int kGroups>
struct OneRow {
  const W4Weight& weight;
  const DigitBlock& block;
  int64_t valid_groups;
  bool per_channel;

  explicit OneRow(const DigitTask& task) : weight(*task.weight), block(*task.block) {
    const w4::Layout& layout = weight.layout;
    per_channel = layout.per_channel();
    valid_groups = layout.groups();
  }

  // total + scale 2^e (dot - zero sum(q)) of a group.
  XGEMM_INLINE_VNNI __m512 finish(const uint8_t* strip, int64_t index, __m512 dot,
                                  __m512 total) const {
    const __m512 power = _mm512_set1_ps(block.power[index]);
    if (per_channel) return _mm512_fmadd_ps(dot, power, total);
    if (index >= valid_groups) return total;  // padding
    const uint8_t* scales =
        strip + w4::kStripCodeBytes + index % kGroups * kColumns * w4::kScaleBytes;
    const __m512 zero = weight.layout.zeros
                            ? load_16(scales + kGroups * kColumns * w4::kScaleBytes, false)
                            : _mm512_set1_ps(w4::kSymmetricZero);
    const __m512 scale = _mm512_mul_ps(load_16(scales, weight.bf16_scales), power);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(zero, _mm512_set1_ps(block.sums[index]), dot), scale,
                           total);
  }

  // The dot products of half a strip's unit with the groups of half a unit.
  static constexpr int kCount = kGroups == 4 ? 2 : 1;
  XGEMM_INLINE_VNNI static void multiply(const uint8_t* gids, const Digit* digits,
                                         __m512 dots[kCount]) {
    Codes codes[kUppers];
#pragma GCC unroll 2
    for (int u = 0; u < kUppers; ++u) load_codes(gids + 256 * u, codes[u]);
    const Sums none = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    Sums sums[kUppers] = {none, none};
    add_digit(codes, digits[1], sums);
#pragma GCC unroll 2
    for (Sums& each : sums) {
      each.both = _mm512_slli_epi32(each.both, 8);
      each.high = _mm512_slli_epi32(each.high, 8);
    }
    add_digit(codes, digits[0], sums);
    const ColumnSums<kCount> low = add_words<kCount>(sums);
#pragma GCC unroll 2
    for (int g = 0; g < kCount; ++g) dots[g] = _mm512_cvtepi32_ps(low.of[g]);
  }
};

template <int kGroups>
XGEMM_TARGET_VNNI void stream(const DigitTask& task) {
  using Row = OneRow<kGroups>;
  constexpr int kStrips = w4::kRowColumns / kColumns;
  const w4::Layout& layout = task.weight->layout;
  const Row row(task);
  const int64_t strips = task.strips, strip_bytes = layout.strip_bytes();
  const int64_t halves = ceil_div(layout.k, kHalfK), unit_bytes = layout.unit_bytes();
  const uint8_t* unit = task.weight->data + layout.strip_offset(task.column, 0);
  __m512 totals[kStrips], dots[kStrips][Row::kCount];
  for (__m512& total : totals) total = _mm512_setzero_ps();
  // Half by half over all strips, whose digits are the same, and in registers.
  for (int64_t half = 0; half < halves; ++half) {
    const bool second = half % 2 == 1;
    const uint8_t* x = task.block->x + half / 2 * kDigits * w4::kUnitK + second * kHalfK;
    const Digit digits[kDigits] = {load_digit(x), load_digit(x + w4::kUnitK)};
    const uint8_t* strip = unit;
    const uint8_t* next = unit + kUnitsAhead * unit_bytes + (second ? strips * strip_bytes / 2 : 0);
    for (int64_t i = 0; i < strips; ++i, strip += strip_bytes) {
      // In the order of its bytes: in that of the reads the hardware would not see a stream (33
      // cycles for 128 weights instead of 13). The last half of K may fetch for a second one.
      for (int fetched = half + 1 == halves && !second ? 0 : 1; fetched < 2; ++fetched) {
        fetch_lines<kStripLines<kGroups> / 2>(next);
        next += strip_bytes / 2;
      }
      __m512 dot[Row::kCount];
      Row::multiply(strip + second * kHalfBytes, digits, dot);
      if constexpr (kGroups == 1) {
        if (second) dot[0] = _mm512_add_ps(dot[0], dots[i][0]);
        dots[i][0] = dot[0];
        if (!second && half + 1 < halves) continue;
      }
#pragma GCC unroll 2
      for (int g = 0; g < Row::kCount; ++g) {
        const int64_t group = kGroups == 1 ? half / 2 : half * Row::kCount + g;
        totals[i] = row.finish(strip, group, dot[g], totals[i]);
      }
    }
    if (second) unit += unit_bytes;
  }
  for (int64_t i = 0; i < strips; ++i) _mm512_storeu_ps(task.out + i * kColumns, totals[i]);
}

}  // namespace

void stream_one_row_avx512(const DigitTask& task) {
  switch (digit_groups(task.weight->layout)) {
    case 1:
      return stream<1>(task);
    case 2:
      return stream<2>(task);
    default:
      return stream<4>(task);
  }
}

}  // namespace xgemm::cpu::w4a16
