// X as the streaming kernel reads it.
#pragma once

#include <vector>

#include "common/parallel.h"
#include "cpu/buffer.h"
#include "cpu/w4a16/stream.h"

namespace xgemm::cpu::w4a16 {

// `count` rows of X from `first` on in blocks of up to kMaxRows, rearranged, and the memory they
// lie in.
class RowBlocks {
 public:
  RowBlocks(const W4Problem& problem, int64_t first, int64_t count, const Parallel& parallel);
  const std::vector<RowBlock>& blocks() const { return blocks_; }

 private:
  Buffer memory_;
  std::vector<RowBlock> blocks_;
};

// out[c], c in [0, columns), multiples of 16: row `row` of X, of which some values are not finite,
// times columns `column` + c of the dequantized weight. Finite values and their products change no
// sum that is infinite or NaN, so they are left out.
void multiply_non_finite(const W4Problem& problem, int64_t row, int64_t column, int64_t columns,
                         float* out);

// Row `row` of X in fp32, channels in the weight's order, 0 from K to the end of the last unit.
void load_row(const W4Problem& problem, int64_t row, float* values);
// The same by AVX-512; gives the largest magnitude, or an infinity or NaN where there is one.
float load_row_avx512(const W4Problem& problem, int64_t row, float* values);
// Elements of X that one thread arranges sooner than others wake (64 rows of 576: 11 us; waking a
// thread and waiting for it: 8 us, both on a Xeon).
inline constexpr int64_t kAloneElements = int64_t{1} << 15;
// K to the end of the last unit.
inline int64_t padded_k(const W4Problem& problem) {
  return problem.weight.layout.units() * w4::kUnitK;
}

// The power of two that brings a row of very large or very small finite values into a range where
// no product with a code overflows or underflows; 1 for all others. `largest`: its magnitude.
float safe_power(float largest);

// Throws std::out_of_range where an entry of problem.perm is not a channel.
void check_perm(const W4Problem& problem);

}  // namespace xgemm::cpu::w4a16
