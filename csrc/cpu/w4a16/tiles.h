// Products of 4-bit weights by tiles of bf16 (AMX), for many rows.
//
// A row of X is split into parts of bf16 that add up to it: one (bf16), two (fp16) or three (fp32),
// the first rounded to nearest, the second what it leaves, and so on. Codes less 8 are exact in
// bf16, so each product of a part and a code is exact in fp32. All parts are added up in one tile,
// over a group; then
//   y = sum over groups of scale (dot(code - 8, x) - (zero - 8) sum(x)).
//
// Rows of X lie in row tiles of 16 rows at most by 32 channels, codes in tiles of 16 pairs of
// channels by 16 columns. The instructions take subnormal parts for 0, which loses less than 2^-126
// of an element (rows of tiny values are scaled, rows.h).
#pragma once

#include <cstdint>
#include <vector>

#include "common/parallel.h"
#include "cpu/buffer.h"
#include "cpu/w4a16/api.h"

namespace xgemm::cpu::w4a16 {

inline constexpr int kTileRows = 16, kTileK = 32, kTileElements = kTileRows * kTileK;
inline constexpr int kStepsPerUnit = w4::kUnitK / kTileK;
inline constexpr int kPartRows = 64;  // rows that share one decoding of the weights

constexpr int parts_of(DType dtype) {
  return dtype == DType::kF32 ? 3 : dtype == DType::kF16 ? 2 : 1;
}
// Steps of 32 channels with one scale: those of a group, or of a unit.
constexpr int steps_per_group(const w4::Layout& layout) {
  return layout.per_channel() ? kStepsPerUnit : static_cast<int>(layout.group_size / kTileK);
}

// Up to kPartRows rows of X.
struct PartBlock {
  int rows = 0;
  int row_tiles = 0, tile_rows = 0;  // as even as they can be: 17 rows are 2 tiles of 9
  int parts = 0;
  uint16_t* x = nullptr;     // [unit][row tile][step][part][16][32]
  float* sums = nullptr;     // [unit][group][tile_rows * row_tiles]: the sum of a row over a group
  float total[kPartRows];    // the sum of a row over all groups
  float unscale[kPartRows];  // as in RowBlock
  bool finite[kPartRows];

  int padded_rows() const { return row_tiles * tile_rows; }
};

struct PartTask {
  const W4Weight* weight;
  const PartBlock* block;
  int64_t column;  // first output column, a multiple of 16
  int64_t strips;  // 1 .. 4, all in one row of qweight
  float* out;      // [padded rows][64]
};

// `count` rows of X from `first` as parts, and the memory they lie in.
class RowParts {
 public:
  RowParts(const W4Problem& problem, int64_t first, int64_t count, const Parallel& parallel);
  const std::vector<PartBlock>& blocks() const { return blocks_; }

 private:
  Buffer memory_;
  std::vector<PartBlock> blocks_;
};

// values: [unit][128] finite, times `scale`, as row `slot` of the block.
void arrange_parts_avx512(const w4::Layout& layout, const float* values, float scale, int slot,
                          PartBlock& block);
void stream_tiles_amx(const PartTask& task);

}  // namespace xgemm::cpu::w4a16
