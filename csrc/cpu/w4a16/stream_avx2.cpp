// The streaming kernel with AVX2: 8 weights cost and + convert, and an fma for every row of X.
#include <immintrin.h>

#include "cpu/w4a16/dequant.h"
#include "cpu/w4a16/scales_avx2.h"
#include "cpu/w4a16/stream.h"

namespace xgemm::cpu::w4a16 {
namespace {

// About a unit ahead: the hardware's prefetcher stops at the end of a 4 KiB page.
constexpr int64_t kPrefetchBytes = 4096;

// How often a group ends: with the whole sum, a unit (128 k), half a unit, or a quarter.
enum class Grouping { kChannel, kUnit, kHalf, kQuarter };

// Scales of a strip's columns for one unit. kUnit: [16]; kHalf:
// [2 halves][16]; kQuarter: [2 halves][16 columns, in the order of quarter_slot][4], a scale for
// each j (the k of a lane are 16 j + ...).
struct UnitScales {
  alignas(32) float values[2 * kColumns * 4];
};
// Columns c and c + 4 lie side by side: what one 256-bit unpack gives.
constexpr int quarter_slot(int column) { return column / 8 * 8 + column % 4 * 2 + column % 8 / 4; }

template <Grouping kGrouping>
XGEMM_INLINE_AVX2 __m256 scale_of(const UnitScales& scales, int half, int column) {
  if constexpr (kGrouping == Grouping::kQuarter) {
    const float* quad = scales.values + (half * kColumns + quarter_slot(column)) * 4;
    return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(quad));
  } else {
    return _mm256_broadcast_ss(scales.values + (kGrouping == Grouping::kHalf ? half : 0) * 16 +
                               column);
  }
}

// sums += zero * scale * sum(x) for the strip's 16 columns, and keeps the scales for the products.
template <Grouping kGrouping, int kRows>
XGEMM_INLINE_AVX2 void load_unit(const W4Weight& weight, const uint8_t* strip, const float* sums,
                                 int64_t valid_groups, UnitScales& scales, float* offsets) {
  constexpr int kGroups = kGrouping == Grouping::kUnit ? 1 : kGrouping == Grouping::kHalf ? 2 : 4;
  constexpr int64_t kGroupBytes = kColumns * w4::kScaleBytes;
  for (int i = 0; i < 2; ++i) {
    __m256 scale[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      if (g < valid_groups) {
        const uint8_t* bytes = strip + w4::kStripCodeBytes + g * kGroupBytes + 16 * i;
        scale[g] = load_8_scales(bytes, weight.bf16_scales);
        const __m256 zero = weight.layout.zeros ? load_8_fp16(bytes + kGroups * kGroupBytes)
                                                : _mm256_set1_ps(w4::kSymmetricZero);
        const __m256 product = _mm256_mul_ps(zero, scale[g]);
        for (int row = 0; row < kRows; ++row) {
          float* offset = offsets + row * kColumns + 8 * i;
          const __m256 sum = _mm256_broadcast_ss(sums + g * kRows + row);
          _mm256_store_ps(offset, _mm256_fmadd_ps(product, sum, _mm256_load_ps(offset)));
        }
      } else {
        scale[g] = _mm256_setzero_ps();  // padding: what is stored there may be anything
      }
      if constexpr (kGrouping != Grouping::kQuarter) {
        _mm256_store_ps(scales.values + g * kColumns + 8 * i, scale[g]);
      }
    }
    if constexpr (kGrouping == Grouping::kQuarter) {
      for (int half = 0; half < 2; ++half) {
        float* out = scales.values + (half * kColumns + 8 * i) * 4;
        const __m256 low = _mm256_unpacklo_ps(scale[2 * half], scale[2 * half + 1]);
        const __m256 high = _mm256_unpackhi_ps(scale[2 * half], scale[2 * half + 1]);
        _mm256_store_ps(out, _mm256_permute_ps(low, 0x50));
        _mm256_store_ps(out + 8, _mm256_permute_ps(low, 0xfa));
        _mm256_store_ps(out + 16, _mm256_permute_ps(high, 0x50));
        _mm256_store_ps(out + 24, _mm256_permute_ps(high, 0xfa));
      }
    }
  }
}

// acc[pair][0 or 1: column gid or gid + 8][row] += codes * x over half a strip.
template <int kRows, int kPairs>
XGEMM_INLINE_AVX2 void dot_half(const uint8_t* codes, const float* x,
                                __m256 acc[kPairs][2][kRows]) {
#pragma GCC unroll 2
  for (int t = 0; t < 2; ++t) {
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      if (t == 0) _mm_prefetch(codes + pair * 64 + kPrefetchBytes, _MM_HINT_T0);
      const __m256i words =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + pair * 64 + t * 32));
      const __m256i shifted = _mm256_srli_epi32(words, 4);
#pragma GCC unroll 4
      for (int h = 0; h < 4; ++h) {
        const __m256i mask = _mm256_set1_epi32(15 << (8 * h));
        const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(words, mask));
        const __m256 high = _mm256_cvtepi32_ps(_mm256_and_si256(shifted, mask));
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          const __m256 value = _mm256_load_ps(x + ((t * 4 + h) * kRows + row) * kLanes);
          acc[pair][0][row] = _mm256_fmadd_ps(low, value, acc[pair][0][row]);
          acc[pair][1][row] = _mm256_fmadd_ps(high, value, acc[pair][1][row]);
        }
      }
    }
  }
}

// The first `halves` (1 or 2) halves of one strip of one unit; totals: [8 pairs][2][kRows][8
// lanes].
template <Grouping kGrouping, int kRows>
XGEMM_INLINE_AVX2 void stream_strip(const uint8_t* codes, const float* x, int halves,
                                    const UnitScales& scales, float* totals) {
  // 8 chains of fma in flight, and registers left for the words.
  constexpr int kPairs = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  constexpr bool kEachHalf = kGrouping == Grouping::kHalf || kGrouping == Grouping::kQuarter;
  for (int first = 0; first < 8; first += kPairs) {
    __m256 acc[kPairs][2][kRows];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      if (half == halves) break;
      float* total = totals + first * 2 * kRows * kLanes;
      if (half == 0 || kEachHalf) {
        for (auto& pair : acc) {
          for (auto& column : pair) {
            for (__m256& row : column) row = _mm256_setzero_ps();
          }
        }
      }
      dot_half<kRows, kPairs>(codes + half * kHalfBytes + first * 64, x + half * kHalfK * kRows,
                              acc);
      if (half + 1 < halves && !kEachHalf) continue;
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair) {
        for (int upper = 0; upper < 2; ++upper) {
          const __m256 scale = kGrouping == Grouping::kChannel
                                   ? _mm256_set1_ps(1.0f)
                                   : scale_of<kGrouping>(scales, half, first + pair + 8 * upper);
          for (int row = 0; row < kRows; ++row, total += kLanes) {
            const __m256 old = _mm256_load_ps(total);
            _mm256_store_ps(total, _mm256_fmadd_ps(acc[pair][upper][row], scale, old));
          }
        }
      }
    }
  }
}

// Sums of the lanes of 8 vectors `step` floats apart.
XGEMM_INLINE_AVX2 __m256 sum_lanes(const float* v, int step) {
  __m256 pairs[4];
  for (int i = 0; i < 4; ++i) {
    pairs[i] =
        _mm256_hadd_ps(_mm256_load_ps(v + 2 * i * step), _mm256_load_ps(v + (2 * i + 1) * step));
  }
  const __m256 low = _mm256_hadd_ps(pairs[0], pairs[1]);   // vectors 0 .. 3, by 128-bit halves
  const __m256 high = _mm256_hadd_ps(pairs[2], pairs[3]);  // vectors 4 .. 7
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                       _mm256_permute2f128_ps(low, high, 0x31));
}

// The strip's 16 columns of each row, from the totals of all units.
template <Grouping kGrouping, int kRows>
XGEMM_INLINE_AVX2 void finish_strip(const StreamTask& task, int64_t strip, const float* totals,
                                    const float* offsets) {
  const W4Weight& weight = *task.weight;
  const w4::Layout& layout = weight.layout;
  for (int i = 0; i < 2; ++i) {
    for (int row = 0; row < kRows; ++row) {
      __m256 sum = sum_lanes(totals + (i * kRows + row) * kLanes, 2 * kRows * kLanes);
      float* out = task.out + row * w4::kRowColumns + strip * kColumns + 8 * i;
      if constexpr (kGrouping == Grouping::kChannel) {
        if (layout.groups() == 0) {
          _mm256_storeu_ps(out, _mm256_setzero_ps());
          continue;
        }
        const int64_t column = task.column + strip * kColumns;
        const uint8_t* bytes = weight.data + layout.scale_offset(column, 0) + 16 * i;
        const __m256 zero = layout.zeros
                                ? load_8_fp16(weight.data + layout.zero_offset(column, 0) + 16 * i)
                                : _mm256_set1_ps(w4::kSymmetricZero);
        const __m256 x_sum = _mm256_broadcast_ss(task.block->sums + row);
        sum = _mm256_fnmadd_ps(zero, x_sum, sum);
        sum = _mm256_mul_ps(sum, load_8_scales(bytes, weight.bf16_scales));
      } else {
        sum = _mm256_sub_ps(sum, _mm256_load_ps(offsets + row * kColumns + 8 * i));
      }
      _mm256_storeu_ps(out, sum);
    }
  }
}

template <Grouping kGrouping, int kRows>
XGEMM_TARGET_AVX2 void stream_rows(const StreamTask& task) {
  constexpr int64_t kStripTotals = kColumns * kRows * kLanes;
  alignas(64) float totals[4 * kStripTotals] = {};
  alignas(64) float offsets[4 * kRows * kColumns] = {};
  alignas(64) UnitScales scales;
  const W4Weight& weight = *task.weight;
  const w4::Layout& layout = weight.layout;
  // Out of the loop: the layout's arithmetic divides.
  const int64_t units = layout.units(), unit_bytes = layout.unit_bytes();
  const int64_t strip_bytes = layout.strip_bytes(), groups = layout.groups();
  const int64_t groups_per_unit = layout.groups_per_unit();
  const uint8_t* first = weight.data + layout.strip_offset(task.column, 0);
  // Unit by unit over all strips: the bytes of a row of qweight are read in their order.
  for (int64_t unit = 0; unit < units; ++unit) {
    const float* x = task.block->x + unit * w4::kUnitK * kRows;
    const int64_t group = unit * groups_per_unit;
    const int halves = layout.k - unit * w4::kUnitK > kHalfK ? 2 : 1;  // the rest is padding
    for (int64_t i = 0; i < task.strips; ++i) {
      const uint8_t* strip = first + unit * unit_bytes + i * strip_bytes;
      if constexpr (kGrouping != Grouping::kChannel) {
        load_unit<kGrouping, kRows>(weight, strip, task.block->sums + group * kRows, groups - group,
                                    scales, offsets + i * kRows * kColumns);
      }
      stream_strip<kGrouping, kRows>(strip, x, halves, scales, totals + i * kStripTotals);
    }
  }
  for (int64_t strip = 0; strip < task.strips; ++strip) {
    finish_strip<kGrouping, kRows>(task, strip, totals + strip * kStripTotals,
                                   offsets + strip * kRows * kColumns);
  }
}

template <Grouping kGrouping>
XGEMM_TARGET_AVX2 void stream_grouping(const StreamTask& task) {
  static_assert(kMaxRows == 4);
  switch (task.block->rows) {
    case 1:
      return stream_rows<kGrouping, 1>(task);
    case 2:
      return stream_rows<kGrouping, 2>(task);
    case 3:
      return stream_rows<kGrouping, 3>(task);
    default:
      return stream_rows<kGrouping, 4>(task);
  }
}

}  // namespace

void stream_avx2(const StreamTask& task) {
  switch (task.weight->layout.group_size) {
    case 32:
      return stream_grouping<Grouping::kQuarter>(task);
    case 64:
      return stream_grouping<Grouping::kHalf>(task);
    case 128:
      return stream_grouping<Grouping::kUnit>(task);
    default:
      return stream_grouping<Grouping::kChannel>(task);
  }
}

}  // namespace xgemm::cpu::w4a16
