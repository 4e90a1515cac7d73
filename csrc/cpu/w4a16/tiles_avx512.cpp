#include <immintrin.h>

#include <algorithm>

#include "cpu/isa/amx.h"
#include "cpu/w4a16/codes_avx512.h"
#include "cpu/w4a16/tiles.h"

namespace xgemm::cpu::w4a16 {
namespace {

constexpr int kStrips = 4;  // of a row of qweight

// -- X to parts --

XGEMM_TARGET_BF16 inline __m512i round_pair(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

template <int kParts>
XGEMM_TARGET_BF16 void arrange(const w4::Layout& layout, const float* values, float scale, int slot,
                               PartBlock& block) {
  const int group_steps = steps_per_group(layout), row = slot % block.tile_rows;
  const __m512 scales = _mm512_set1_ps(scale);
  const int64_t units = layout.units();
  uint16_t* tiles = block.x + slot / block.tile_rows * kStepsPerUnit * kParts * kTileElements;
  float* sums = block.sums + slot;
  float total = 0.0f;
  for (int64_t unit = 0; unit < units; ++unit) {
    __m512 sum = _mm512_setzero_ps();
    for (int step = 0; step < kStepsPerUnit; ++step, values += kTileK) {
      __m512 low = _mm512_mul_ps(_mm512_loadu_ps(values), scales);
      __m512 high = _mm512_mul_ps(_mm512_loadu_ps(values + 16), scales);
      sum = _mm512_add_ps(sum, _mm512_add_ps(low, high));
      uint16_t* out = tiles + step * kParts * kTileElements + row * kTileK;
#pragma GCC unroll 3
      for (int part = 0; part < kParts; ++part, out += kTileElements) {
        const __m512i rounded = round_pair(low, high);
        _mm512_storeu_si512(out, rounded);
        low = _mm512_sub_ps(low, avx512::widen<DType::kBF16>(_mm512_castsi512_si256(rounded)));
        high = _mm512_sub_ps(
            high, avx512::widen<DType::kBF16>(_mm512_maskz_extracti64x4_epi64(0xff, rounded, 1)));
      }
      if ((step + 1) % group_steps == 0) {
        *sums = _mm512_reduce_add_ps(sum);
        total += *sums;
        sums += block.padded_rows();
        sum = _mm512_setzero_ps();
      }
    }
    tiles += block.row_tiles * kStepsPerUnit * kParts * kTileElements;
  }
  if (slot < block.rows) block.total[slot] = total;
}

// -- the weights --

// What all rows of a block multiply: one unit of up to 4 strips. Columns of a strip are in the
// order 0 .. 3, 8 .. 11, 4 .. 7, 12 .. 15, which is its own inverse.
struct Unit {
  alignas(64) uint16_t codes[kStepsPerUnit][kStrips][kTileElements];
  alignas(64) float scales[kStepsPerUnit][kStrips][16];  // [group]
  alignas(64) float zeros[kStepsPerUnit][kStrips][16];   // less 8
};

XGEMM_INLINE_AVX512 __m512 swap_columns(__m512 x) { return _mm512_shuffle_f32x4(x, x, 0xd8); }

// bf16 of an index's lowest 4 bits less 8; the fifth, which the instruction takes, too, is any.
XGEMM_INLINE_AVX512 __m512i code_values() {
  const __m512i twice = _mm512_set_epi16(
      0x40e0, 0x40c0, 0x40a0, 0x4080, 0x4040, 0x4000, 0x3f80, 0, static_cast<int16_t>(0xbf80),
      static_cast<int16_t>(0xc000), static_cast<int16_t>(0xc040), static_cast<int16_t>(0xc080),
      static_cast<int16_t>(0xc0a0), static_cast<int16_t>(0xc0c0), static_cast<int16_t>(0xc0e0),
      static_cast<int16_t>(0xc100), 0x40e0, 0x40c0, 0x40a0, 0x4080, 0x4040, 0x4000, 0x3f80, 0,
      static_cast<int16_t>(0xbf80), static_cast<int16_t>(0xc000), static_cast<int16_t>(0xc040),
      static_cast<int16_t>(0xc080), static_cast<int16_t>(0xc0a0), static_cast<int16_t>(0xc0c0),
      static_cast<int16_t>(0xc0e0), static_cast<int16_t>(0xc100));
  return twice;
}

// Both rows of a tile that the words of one j and tig hold: channels 2 tig and 2 tig + 8.
template <int kTig>
XGEMM_INLINE_AVX512 void decode(const __m512i words[2], __m512i table, uint16_t* rows) {
  // Twice the words of gids 0 .. 3, then of gids 4 .. 7: the second copies give columns 8 on.
  const __m512i twice = _mm512_shuffle_i32x4(words[0], words[1], kTig * 0x55);
  const __m512i own =
      _mm512_srlv_epi32(twice, _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4));
  _mm512_store_si512(rows, _mm512_permutexvar_epi16(own, table));
  _mm512_store_si512(rows + 4 * 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(own, 8), table));
}

// Half a strip: tiles of two steps.
XGEMM_INLINE_AVX512 void decode_half(const uint8_t* codes, uint16_t* first, uint16_t* second) {
  const __m512i table = code_values();
  __m512i words[4][2];
  fetch_half(codes);
  load_half(codes, words);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    uint16_t* rows = (j < 2 ? first : second) + j % 2 * 8 * 32;
    decode<0>(words[j], table, rows);
    decode<1>(words[j], table, rows + 32);
    decode<2>(words[j], table, rows + 2 * 32);
    decode<3>(words[j], table, rows + 3 * 32);
  }
}

XGEMM_TARGET_AVX512 void decode_strip(const W4Weight& weight, const uint8_t* strip, int i,
                                      Unit& unit) {
  decode_half(strip, unit.codes[0][i], unit.codes[1][i]);
  decode_half(strip + kHalfBytes, unit.codes[2][i], unit.codes[3][i]);
  const w4::Layout& layout = weight.layout;
  if (layout.per_channel()) {
    _mm512_store_ps(unit.scales[0][i], _mm512_set1_ps(1.0f));
    return;
  }
  const int groups = static_cast<int>(layout.groups_per_unit());
  const uint8_t* scales = strip + w4::kStripCodeBytes;
  for (int g = 0; g < groups; ++g, scales += kColumns * w4::kScaleBytes) {
    _mm512_store_ps(unit.scales[g][i], swap_columns(load_16(scales, weight.bf16_scales)));
    if (!layout.zeros) continue;
    const __m512 zeros = load_16(scales + groups * kColumns * w4::kScaleBytes, false);
    _mm512_store_ps(unit.zeros[g][i],
                    swap_columns(_mm512_sub_ps(zeros, _mm512_set1_ps(w4::kSymmetricZero))));
  }
}

// -- the product --

// One or two row tiles by one or two strips, over a group.
struct Group {
  const uint16_t* x;      // the first row tile; the second is a unit's tiles after it
  const uint16_t* codes;  // the first strip
  const float *scales, *zeros;
  const float* sums;
  float* out;
  int steps, tile_rows;
  int row_tiles, strips;  // 1 or 2
};

// The sums of a group, into tiles 0 to 3.
template <int kParts, int kRowTiles, int kCols>
void multiply(const Group& group) {
  constexpr int64_t kStride = 64, kNextTile = kStepsPerUnit * kParts * kTileElements;
  XGEMM_TILE_ZERO(0);
  if (kCols == 2) XGEMM_TILE_ZERO(1);
  if (kRowTiles == 2) XGEMM_TILE_ZERO(2);
  if (kRowTiles == 2 && kCols == 2) XGEMM_TILE_ZERO(3);
  const uint16_t *x = group.x, *codes = group.codes;
  for (int step = 0; step < group.steps; ++step, codes += kStrips * kTileElements) {
    XGEMM_TILE_LOAD(6, codes, kStride);
    if (kCols == 2) XGEMM_TILE_LOAD(7, codes + kTileElements, kStride);
#pragma GCC unroll 3
    for (int part = 0; part < kParts; ++part, x += kTileElements) {
      XGEMM_TILE_LOAD(4, x, kStride);
      XGEMM_TILE_MULTIPLY(0, 4, 6);
      if (kCols == 2) XGEMM_TILE_MULTIPLY(1, 4, 7);
      if (kRowTiles == 2) {
        XGEMM_TILE_LOAD(5, x + kNextTile, kStride);
        XGEMM_TILE_MULTIPLY(2, 5, 6);
        if (kCols == 2) XGEMM_TILE_MULTIPLY(3, 5, 7);
      }
    }
  }
}

void store(const Group& group, float* partial) {
  constexpr int64_t kStride = 2 * 64;
  float* const below = partial + group.tile_rows * 32;
  XGEMM_TILE_STORE(0, partial, kStride);
  if (group.strips == 2) XGEMM_TILE_STORE(1, partial + 16, kStride);
  if (group.row_tiles == 2) {
    XGEMM_TILE_STORE(2, below, kStride);
    if (group.strips == 2) XGEMM_TILE_STORE(3, below + 16, kStride);
  }
}

// out += scale (partial - zero sum).
template <int kCols, bool kZeros>
XGEMM_TARGET_AVX512 void finish(const Group& group, const float* partial) {
  __m512 scales[kCols], zeros[kCols];
#pragma GCC unroll 2
  for (int c = 0; c < kCols; ++c) {
    scales[c] = _mm512_load_ps(group.scales + 16 * c);
    if (kZeros) zeros[c] = _mm512_load_ps(group.zeros + 16 * c);
  }
  float* out = group.out;
  const int rows = group.row_tiles * group.tile_rows;
  for (int row = 0; row < rows; ++row, out += w4::kRowColumns, partial += 32) {
#pragma GCC unroll 2
    for (int c = 0; c < kCols; ++c) {
      __m512 dot = _mm512_load_ps(partial + 16 * c);
      if (kZeros) dot = _mm512_fnmadd_ps(zeros[c], _mm512_set1_ps(group.sums[row]), dot);
      _mm512_storeu_ps(out + 16 * c,
                       _mm512_fmadd_ps(dot, scales[c], _mm512_loadu_ps(out + 16 * c)));
    }
  }
}

// Multiplies groups one after the other, and adds the sums of each to the output while the tiles of
// the next are multiplied.
template <int kParts>
class Pipeline {
 public:
  explicit Pipeline(bool zeros) : zeros_(zeros) {}

  void push(const Group& group) {
    if (group.row_tiles == 2) {
      group.strips == 2 ? multiply<kParts, 2, 2>(group) : multiply<kParts, 2, 1>(group);
    } else {
      group.strips == 2 ? multiply<kParts, 1, 2>(group) : multiply<kParts, 1, 1>(group);
    }
    flush();
    store(group, partial_);
    last_ = group;
  }

  void flush() {
    if (last_.row_tiles == 0) return;
    if (last_.strips == 2) {
      zeros_ ? finish<2, true>(last_, partial_) : finish<2, false>(last_, partial_);
    } else {
      zeros_ ? finish<1, true>(last_, partial_) : finish<1, false>(last_, partial_);
    }
    last_.row_tiles = 0;
  }

 private:
  alignas(64) float partial_[2 * kTileRows * 32];
  Group last_{};
  bool zeros_;
};

// All rows times one unit of the strips.
template <int kParts>
void multiply_unit(const PartTask& task, const Unit& weights, int64_t unit, int steps) {
  const PartBlock& block = *task.block;
  const w4::Layout& layout = task.weight->layout;
  const int group_steps = steps_per_group(layout), strips = static_cast<int>(task.strips);
  const int groups = kStepsPerUnit / group_steps;
  constexpr int64_t kTileParts = kStepsPerUnit * kParts * kTileElements;
  Pipeline<kParts> pipeline(layout.zeros && !layout.per_channel());
  for (int tile = 0; tile < block.row_tiles; tile += 2) {
    for (int g = 0; g * group_steps < steps; ++g) {
      // All strips before the next group: tiles of X come from the L2 cache once.
      for (int strip = 0; strip < strips; strip += 2) {
        const int first = g * group_steps, row = tile * block.tile_rows;
        pipeline.push({.x = block.x + (unit * block.row_tiles + tile) * kTileParts +
                            first * kParts * kTileElements,
                       .codes = weights.codes[first][strip],
                       .scales = weights.scales[g][strip],
                       .zeros = weights.zeros[g][strip],
                       .sums = block.sums + (unit * groups + g) * block.padded_rows() + row,
                       .out = task.out + row * w4::kRowColumns + strip * kColumns,
                       .steps = std::min(group_steps, steps - first),
                       .tile_rows = block.tile_rows,
                       .row_tiles = std::min(2, block.row_tiles - tile),
                       .strips = std::min(2, strips - strip)});
      }
    }
  }
  pipeline.flush();
}

template <int kParts>
void stream(const PartTask& task) {
  const w4::Layout& layout = task.weight->layout;
  const int64_t units = layout.units(), last_steps = ceil_div<int64_t>(layout.k, kTileK);
  const int64_t unit_bytes = layout.unit_bytes(), strip_bytes = layout.strip_bytes();
  const uint8_t* strips = task.weight->data + layout.strip_offset(task.column, 0);
  Unit weights;
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int i = 0; i < task.strips; ++i) {
      decode_strip(*task.weight, strips + unit * unit_bytes + i * strip_bytes, i, weights);
    }
    const int64_t steps = std::min<int64_t>(kStepsPerUnit, last_steps - unit * kStepsPerUnit);
    multiply_unit<kParts>(task, weights, unit, static_cast<int>(steps));
  }
}

// Columns in their order; with one scale and zero point for all of K these come in, too.
XGEMM_TARGET_AVX512 void finish_task(const PartTask& task) {
  const W4Weight& weight = *task.weight;
  const bool per_channel = weight.layout.per_channel();
  for (int64_t i = 0; i < task.strips; ++i) {
    const int64_t column = task.column + i * kColumns;
    __m512 scale = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps();
    if (per_channel) {
      scale = load_16(weight.data + weight.layout.scale_offset(column, 0), weight.bf16_scales);
      if (weight.layout.zeros) {
        zero = _mm512_sub_ps(load_16(weight.data + weight.layout.zero_offset(column, 0), false),
                             _mm512_set1_ps(w4::kSymmetricZero));
      }
    }
    for (int row = 0; row < task.block->rows; ++row) {
      float* out = task.out + row * w4::kRowColumns + i * kColumns;
      __m512 sum = swap_columns(_mm512_loadu_ps(out));
      if (per_channel) {
        const __m512 total = _mm512_set1_ps(task.block->total[row]);
        sum = _mm512_mul_ps(_mm512_fnmadd_ps(zero, total, sum), scale);
      }
      _mm512_storeu_ps(out, sum);
    }
  }
}

}  // namespace

void arrange_parts_avx512(const w4::Layout& layout, const float* values, float scale, int slot,
                          PartBlock& block) {
  switch (block.parts) {
    case 1:
      return arrange<1>(layout, values, scale, slot, block);
    case 2:
      return arrange<2>(layout, values, scale, slot, block);
    default:
      return arrange<3>(layout, values, scale, slot, block);
  }
}

void stream_tiles_amx(const PartTask& task) {
  const PartBlock& block = *task.block;
  std::fill(task.out, task.out + block.padded_rows() * w4::kRowColumns, 0.0f);
  amx::TileConfig config;
  std::fill(config.rows, config.rows + 6, static_cast<uint8_t>(block.tile_rows));  // sums and X
  amx::configure(config);
  switch (block.parts) {
    case 1:
      stream<1>(task);
      break;
    case 2:
      stream<2>(task);
      break;
    default:
      stream<3>(task);
  }
  amx::release();
  finish_task(task);
}

}  // namespace xgemm::cpu::w4a16
