// What the w4a16 rungs share: the operands, one product of fragments, and how a warp's sums leave
// the block.
//
// Y = X W, where W[k][n] = (code[k][n] - 8) * scale[k / 128][n]. The tensor cores multiply 16
// columns of W (their A operand, W transposed) by 8 rows of X (their B operand).
//
// mma.m16n8k16 wants in lane 4 g + t the k 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of row g. But a sum
// over k may be taken in any order, if both operands agree: here lane 4 g + t holds k 8 t .. 8 t +
// 7 of 32, 16 contiguous bytes of X, which two mma consume.
#pragma once

#include <cuda_fp16.h>

#include "cuda/ladder/api.h"
#include "cuda/launch.h"
#include "cuda/ptx/half2.h"
#include "cuda/ptx/lop3.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::ladder::w4a16 {

inline constexpr int kGroup = 128;       // k that share a scale
inline constexpr int kWarpColumns = 64;  // of a warp's product: four times 16

// The operands as a kernel sees them.
struct Operands {
  const __half* x;        // [m, k]
  const uint32_t* codes;  // [k / 8, n], eight k a word, the lowest nibble first; or packed
  const __half* scales;   // [k / 128, n]; or packed
  __half* y;              // [m, n]
  int m, n, k;
};

inline Operands operands_of(const QuantizedProduct& product) {
  return {static_cast<const __half*>(product.x),
          product.codes,
          static_cast<const __half*>(product.scales),
          static_cast<__half*>(product.y),
          product.m,
          product.n,
          product.k};
}

// Rows of X that a block multiplies: 16 where there are no more, else 64.
inline bool few_rows(const QuantizedProduct& product) { return product.m <= 16; }
inline unsigned row_blocks(const QuantizedProduct& product, int rows) {
  return static_cast<unsigned>((product.m + rows - 1) / rows);
}

// A lane's: its 8 k of row lane / 4 of each 8 rows.
template <int kRows>
using RowFragments = uint4[kRows / 8];

// Of the four times 16 columns, for each 8 rows: columns lane / 4 (two sums) and lane / 4 + 8 of
// rows 2 (lane % 4) and 2 (lane % 4) + 1.
template <int kRows>
using Sums = float[kWarpColumns / 16][kRows / 8][4];

template <int kRows>
__device__ inline void clear(Sums<kRows>& sums) {
#pragma unroll
  for (auto& columns : sums) {
#pragma unroll
    for (auto& rows : columns) {
#pragma unroll
      for (float& sum : rows) sum = 0.0f;
    }
  }
}

// 32 k from `k` on, of rows from `row` on. Rows past the last one read that again.
template <int kRows>
__device__ inline void load_rows(RowFragments<kRows>& out, const Operands& x, int row, int k,
                                 int lane) {
#pragma unroll
  for (int i = 0; i < kRows / 8; ++i) {
    const int mine = min(row + i * 8 + lane / 4, x.m - 1);
    out[i] = *reinterpret_cast<const uint4*>(x.x + int64_t{mine} * x.k + k + lane % 4 * 8);
  }
}

// 16 of the 32 k, those of two of the four registers: `half` is 0 or 1.
template <int kRows>
__device__ inline void multiply(float (&sums)[kRows / 8][4], const uint32_t (&w)[4],
                                const RowFragments<kRows>& x, int half) {
#pragma unroll
  for (int i = 0; i < kRows / 8; ++i) {
    ptx::mma_m16n8k16<__half>(sums[i], w, half == 0 ? x[i].x : x[i].z, half == 0 ? x[i].y : x[i].w);
  }
}

// Eight codes of a word, two a register, made of nibbles i and i + 4. 0x6400 is the fp16 number
// 1024, whose last bit counts 1: 0x6400 | q is 1024 + q, and 0x6400 | q << 4 is 1024 + 16 q. So an
// addition, or a multiplication by 1/16 and an addition, gives q - 8.
__device__ inline void dequantize(uint32_t word, uint32_t (&out)[4]) {
  constexpr uint32_t kLow = 0x000f000f, kHigh = 0x00f000f0, k1024 = 0x64006400;
  constexpr uint32_t kMinus1032 = 0xe408e408, kSixteenth = 0x2c002c00, kMinus72 = 0xd480d480;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    out[i] = ptx::add_f16x2(ptx::lop3_and_or(word, kLow, k1024), kMinus1032);
    out[i + 1] = ptx::fma_x2<__half>(ptx::lop3_and_or(word, kHigh, k1024), kSixteenth, kMinus72);
    word >>= 8;
  }
}

// a b, of two fp16 numbers each.
__device__ inline uint32_t scaled(uint32_t a, uint32_t b) {
  constexpr uint32_t kMinusZero = 0x80008000;
  return ptx::fma_x2<__half>(a, b, kMinusZero);
}

__device__ inline uint32_t twice(__half value) {
  return 0x00010001u * *reinterpret_cast<const uint16_t*>(&value);
}

// 16 rows of the sums of `kWarps` warps. 4 more columns: the four rows that a warp writes at once
// then begin in banks 0, 8, 16 and 24.
template <int kWarps, int kColumns>
using Slots = float[kWarps][16][kColumns + 4];

// Rows 16 * `chunk` and on of a warp's sums, to its columns of its slot.
template <int kRows, int kColumns>
__device__ inline void put_sums(float (&slot)[16][kColumns], const Sums<kRows>& sums, int chunk,
                                int column, int lane) {
#pragma unroll
  for (int i = 0; i < kWarpColumns / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int row = j / 4 * 8 + lane % 4 * 2 + j % 2;
      slot[row][column + i * 16 + j % 4 / 2 * 8 + lane / 4] = sums[i][chunk * 2 + j / 4][j % 4];
    }
  }
}

// Four warps have the sums of the same 64 columns, each of its own k: adds and stores them.
template <int kRows>
__device__ inline void store(const Operands& x, const Sums<kRows>& sums, int row, int column,
                             int tid) {
  using Four = Slots<4, kWarpColumns>;
  XGEMM_STATIC_SHARED(Four, slots);
#pragma unroll
  for (int chunk = 0; chunk < kRows / 16; ++chunk) {
    put_sums<kRows>(slots[tid / 32], sums, chunk, 0, tid % 32);
    __syncthreads();  // the sums are there
    for (int i = tid / kWarpColumns; i < 16; i += 2) {
      const int at = tid % kWarpColumns, to = row + chunk * 16 + i;
      const float sum = (slots[0][i][at] + slots[1][i][at]) + (slots[2][i][at] + slots[3][i][at]);
      if (to < x.m) x.y[int64_t{to} * x.n + column + at] = __float2half_rn(sum);
    }
    __syncthreads();  // and have been read
  }
}

}  // namespace xgemm::cuda::ladder::w4a16
