// The streaming kernel's interface: a few rows of X, rearranged once a call, times one row of
// qweight (up to 64 output columns).
//
// A word of the packed layout holds, at bits 8h and 8h + 4, the codes of columns gid and gid + 8
// for the same channel, h = 0 .. 3. A kernel masks the nibbles of gid where they stand, and those
// of gid + 8 likewise after one shift of the word by 4; a code comes out 2^8h too large, and 2^-8h
// is folded into X. The zero point leaves the inner loop by
//   y = sum over groups of scale * (dot(code, x) - zero * sum(x)).
// An infinity would be NaN there (inf - inf, or 0 * inf of a code of 0), which it is not in the
// product with the dequantized weight. So rows with one are multiplied by that.
//
// Every row of X is summed in the same order whatever rows stand beside it, so this kernel is batch
// invariant by construction.
#pragma once

#include <cstdint>

#include "cpu/w4a16/api.h"

namespace xgemm::cpu::w4a16 {

inline constexpr int kMaxRows = 4;  // rows of X that share one conversion of the weights
inline constexpr int64_t kLanes = 8;

// Rows of X as the kernels read them: x[unit][half][tig / 2][h][row][lane], lane = tig % 2 * 4 + j,
// is the channel 128 unit + 64 half + 16 j + 2 tig + 8 (h % 2) + h / 2, times 2^-8h; channels from
// K on are 0.
struct RowBlock {
  int rows = 0;             // 1 .. kMaxRows
  float* x = nullptr;       // 64-byte aligned
  float* sums = nullptr;    // [groups][rows]: the sum of x over a group
  float unscale[kMaxRows];  // rows of very large or very small values were scaled by a power of two
  bool finite[kMaxRows];    // a row that is not is multiplied by rows.h's multiply_non_finite
};

struct StreamTask {
  const W4Weight* weight;
  const RowBlock* block;
  int64_t column;  // first output column, a multiple of 16
  int64_t strips;  // 1 .. 4, all in one row of qweight
  float* out;      // [rows][64]
};

// Contiguous elements of a row of Y.
struct RowOutput {
  void* y;
  const void* bias;  // contiguous as well, or null
  Activation activation;
};
// y = activation(values * unscale + bias); values: readable to a multiple of 8.
void store_row_avx2(const RowOutput& row, DType dtype, int64_t count, float unscale,
                    const float* values);

void stream_generic(const StreamTask& task);
void stream_avx2(const StreamTask& task);

// Channel, within its half, of a place of RowBlock::x.
constexpr int64_t stream_channel(int64_t t, int64_t h, int64_t lane) {
  return 16 * (lane % 4) + 2 * (2 * t + lane / 4) + 8 * (h % 2) + h / 2;
}

}  // namespace xgemm::cpu::w4a16
