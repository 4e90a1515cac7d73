// Products of 4-bit weights by 8-bit dot products (AVX-512 VNNI), for any number of rows.
//
// A group of channels of a row of X becomes integers q and a power of two: x = 2^e q, rounded to
// nearest, with the largest |q| in the top power of two of its range. An integer is 2 or 3 signed
// digits to the base 256. A dot product of codes (0 .. 15) with one digit, over 4 channels, is one
// instruction and exact, and so is the sum over a group; then
//   y = sum over groups of scale 2^e (dot(code, q) - zero sum(q)).
// fp16 and bf16 take 2 digits: an element within a factor of 16 (fp16), or 128 (bf16), of its
// group's largest is exact, and no error is above 2^-15 of the largest. fp32 takes 3: 2^-23. So do
// fp16 and bf16 where a group has an outlier, beside which 2 digits would round the others to less
// than their dtype holds, and batch-invariant products: what one row needs all rows of a call get.
//
// Lanes are the 16 columns of a strip, and a digit of 4 channels is broadcast to them. Of one row
// of 2 digits (digits_one_avx512.cpp) they are 4 columns with their 4 words of the layout: fewer
// shuffles decode these, and others, whose number grows with the rows, add up the words.
#pragma once

#include <cstdint>
#include <vector>

#include "common/parallel.h"
#include "cpu/buffer.h"
#include "cpu/w4a16/api.h"

namespace xgemm::cpu::w4a16 {

inline constexpr int kDigitRows = 64;  // rows that share one decoding of the weights

// At least.
constexpr int digits_of(DType dtype) { return dtype == DType::kF32 ? 3 : 2; }
// The largest magnitude of a group over the mean of the others, up to which 2 digits lose no more
// than the rounding of a result to the dtype does.
constexpr float max_digit_spread(DType dtype) { return dtype == DType::kF16 ? 16.0f : 128.0f; }
// Groups of a unit: those of the weight, or one.
constexpr int64_t digit_groups(const w4::Layout& layout) {
  return layout.per_channel() ? 1 : layout.groups_per_unit();
}

// Up to kDigitRows rows of X.
struct DigitBlock {
  int rows = 0;
  int digits = 0;
  uint8_t* x = nullptr;       // [unit][row][digit, the lowest first][half][tig][j][h]: 128 each
  float* power = nullptr;     // [unit][group][row]: 2^e
  float* sums = nullptr;      // [unit][group][row]: the sum of the integers
  float total[kDigitRows];    // the sum of the row as the integers have it
  float unscale[kDigitRows];  // as in RowBlock
  bool finite[kDigitRows];
};

struct DigitTask {
  const W4Weight* weight;
  const DigitBlock* block;
  int64_t column;  // first output column, a multiple of 16
  int64_t strips;  // 1 .. 4, all in one row of qweight
  float* out;      // [rows][64]
};

// `count` rows of X from `first` as digits, and the memory they lie in.
class RowDigits {
 public:
  RowDigits(const W4Problem& problem, int64_t first, int64_t count, const Parallel& parallel);
  const std::vector<DigitBlock>& blocks() const { return blocks_; }

 private:
  int digits_;
  Buffer memory_;
  std::vector<DigitBlock> blocks_;
};

// Whether one of values, `count` of them in groups of `size`, both multiples of 16, is more than
// `spread` times the mean magnitude of the others of its group.
bool has_outlier_avx512(const float* values, int64_t count, int64_t size, float spread);
// values: [unit][128] finite, times `scale`, as row `slot` of the block.
void arrange_digits_avx512(const w4::Layout& layout, const float* values, float scale, int slot,
                           DigitBlock& block);
void stream_digits_avx512(const DigitTask& task);
// Of one row of two digits, but for what one group for all of K takes in the end.
void stream_one_row_avx512(const DigitTask& task);

}  // namespace xgemm::cpu::w4a16
