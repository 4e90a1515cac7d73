// Ladder w4a16, rung 2: mma, and two codes at a time by LOP3.
//
// Source:    Kim et al., "Who Says Elephants Can't Run" (arXiv 2211.10017), which MARLIN (arXiv
//            2408.11743) builds on.
// Changed:   rung 0's product by mma, whose W fragments are made of codes by LOP3.
// Published: nothing.
//
// A word of codes has 8 k of a column. Rung 0's fragments want exactly that of a lane: k 8 t .. 8 t
// + 7 of columns g and g + 8. So a lane loads words where rung 0 loads 16 bytes of weights, and
// makes two weights of each LOP3: (word & 0x000f000f) | 0x64006400 are two fp16 numbers, 1024 plus
// nibbles 0 and 4. One addition takes 1032 away (common.cuh has the constants). 8 weights cost 4
// LOP3, a shift, 4 HFMA2 and 4 multiplications by the scale: 13 instructions where rung 1 has 40.
//
// Nibbles come in pairs (0, 4), (1, 5), (2, 6), (3, 7). X must follow: a permutation of bytes makes
// (0, 4) and (1, 5) of its registers (0, 1) and (4, 5).
//
// What is wrong with it. A load of 4 bytes a lane, of 32 contiguous bytes a row of words: 8 loads
// for 1 KB. And X is permuted again by every warp, for each 32 k.
#pragma once

#include "cuda/ladder/w4a16/common.cuh"

namespace xgemm::cuda::ladder::w4a16::rung2 {

inline constexpr int kThreads = 128, kBlockK = 128;

// (0, 1) (2, 3) (4, 5) (6, 7) -> (0, 4) (1, 5) (2, 6) (3, 7)
__device__ inline uint4 in_order_of_nibbles(uint4 x) {
  constexpr unsigned kLow = 0x5410, kHigh = 0x7632;
  return {__byte_perm(x.x, x.z, kLow), __byte_perm(x.x, x.z, kHigh), __byte_perm(x.y, x.w, kLow),
          __byte_perm(x.y, x.w, kHigh)};
}

template <int kRows>
__global__ void __launch_bounds__(kThreads) gemm_kernel(Operands x) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int column = static_cast<int>(blockIdx.x) * kWarpColumns;
  const int row = static_cast<int>(blockIdx.y) * kRows;
  const int mine = column + lane / 4;
  Sums<kRows> sums = {};
  for (int k = warp * 32; k < x.k; k += kBlockK) {
    RowFragments<kRows> rows;
    load_rows<kRows>(rows, x, row, k, lane);
#pragma unroll
    for (uint4& fragment : rows) fragment = in_order_of_nibbles(fragment);
    const uint32_t* words = x.codes + int64_t{k / 8 + lane % 4} * x.n + mine;
    const __half* scales = x.scales + int64_t{k / kGroup} * x.n + mine;
#pragma unroll
    for (int i = 0; i < kWarpColumns / 16; ++i) {
      uint32_t low[4], high[4];
      dequantize(words[i * 16], low);
      dequantize(words[i * 16 + 8], high);
      const uint32_t scale_low = twice(scales[i * 16]), scale_high = twice(scales[i * 16 + 8]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t w[4] = {scaled(low[2 * half], scale_low), scaled(high[2 * half], scale_high),
                               scaled(low[2 * half + 1], scale_low),
                               scaled(high[2 * half + 1], scale_high)};
        multiply<kRows>(sums[i], w, rows, half);
      }
    }
  }
  store<kRows>(x, sums, row, column, tid);
}

template <int kRows>
Status launch(const QuantizedProduct& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kWarpColumns), row_blocks(product, kRows));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder w4a16: rung 2", grid, gemm_kernel<kRows>, operands_of(product));
}

inline Status run(const QuantizedProduct& product) {
  return few_rows(product) ? launch<16>(product) : launch<64>(product);
}

}  // namespace xgemm::cuda::ladder::w4a16::rung2
