// Products of bf16 by instructions that take bf16 and add in fp32: AMX (TDPBF16PS) or AVX512_BF16
// (VDPBF16PS).
//
// Both operands are packed into tiles of 1 KiB, 16 rows of A or 16 columns of B by 32 k:
//   A: [16 rows][32 k];  B: [16 pairs of k][16 columns][2 k] (VNNI).
// Each is the other's transpose in units of 2 k. Tiles of a panel follow one another along k; what
// is not there is 0.
//
// The instructions take subnormal operands for 0 and flush what is below 2^-126 to 0. Packing notes
// the smallest exponent of each panel. Where no operand is subnormal and every product of two
// panels is 0 or at least 2^-103, an operation flushes at most 2^-23 of one product: no more than
// the rounding that the error bound of fp32 sums counts anyway. All other tiles (masked softmax,
// weights near 2^-100) are multiplied by fp32 FMAs, from the same panels.
#pragma once

#include <algorithm>

#include "cpu/isa/isa.h"
#include "cpu/sgemm/product.h"

namespace xgemm::cpu::dense {

inline constexpr int64_t kTileExtent = 16, kTileK = 32, kTileElements = kTileExtent * kTileK;
inline constexpr int64_t kBlockExtent = 2 * kTileExtent;  // a block of D is 2 x 2 tiles
inline constexpr int64_t kBlockFloats = kBlockExtent * kBlockExtent;

// The sums of one block of D.
struct Bf16Block {
  const uint16_t *a, *b;     // the first panel of each
  int64_t a_next, b_next;    // elements from there to the second
  int row_tiles, col_tiles;  // 1 or 2
  int64_t steps;             // of 32 k
  float* sums;               // [32][32]
  bool accumulate;           // add to sums, else overwrite them
};

// The smallest biased exponent of the elements that are not 0.
struct Lowest {
  static constexpr int kNone = 1 << 10;          // all are 0
  static constexpr int kSubnormal = -(1 << 10);  // one is subnormal
  int exponent = kNone;
  void add(const Lowest& other) { exponent = std::min(exponent, other.exponent); }
};
// Whether every product is 0 or at least 2^-103 (a bias of 127 each).
inline bool flushes_nothing(const Lowest& a, const Lowest& b) {
  return a.exponent > 0 && b.exponent > 0 && a.exponent + b.exponent - 2 * 127 >= -103;
}

struct Bf16Kernels {
  Isa isa;
  // Products of fewer rows or columns are streamed, as fp32.
  int least_extent;
  // Rows or columns of D, for each thread but one, from which each packs all that it reads for
  // itself; 0: never.
  int apart_extent;
  // Around the calls of multiply by one thread.
  void (*begin)();
  void (*end)();
  void (*multiply)(const Bf16Block& block);
};

extern const Bf16Kernels kAvx512Bf16Kernels;
extern const Bf16Kernels kAmxKernels;

// The same sums by FMAs of fp32.
void multiply_exact_avx512(const Bf16Block& block);

// Packs x [extent, k] of bf16, as A's tiles or as B's (`pairs`, x is B^T then), into ceil(extent /
// 16) panels of ceil(k / 32) tiles each, and adds each panel's exponents to lowest[panel].
void pack_bf16_avx512(const ConstMatrix& x, int64_t extent, int64_t k, bool pairs, uint16_t* out,
                      Lowest* lowest);

// out = sums^T, both [32][32].
void transpose_block_avx512(const float* sums, float* out);

// As Finish, for a block of D that is bf16.
void finish_bf16_avx512(const Product& p, int64_t i0, int64_t j0, int64_t rows, int64_t cols,
                        const float* sums, int64_t ld);

}  // namespace xgemm::cpu::dense
