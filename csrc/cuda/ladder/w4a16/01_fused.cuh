// Ladder w4a16, rung 1: fused, nibble by nibble.
//
// Source:    ours: the plainest fused kernel.
// Changed:   starts over: one launch. A thread dequantizes the codes of a column, one after the
//            other, and multiplies them by all rows of its block, on the FMA units.
// Published: nothing.
//
// W is read once, in 4 bits, and never written. Each nibble takes a shift, a mask, a conversion to
// float, a subtraction and a multiplication, and then an FMA for each row: at one row the
// conversion costs more than the product.
//
// What is wrong with it. The instructions: five for each weight before the first product, and the
// products themselves on units that do a fraction of what tensor cores do.
#pragma once

#include "cuda/ladder/w4a16/common.cuh"

namespace xgemm::cuda::ladder::w4a16::rung1 {

inline constexpr int kColumns = 64, kSlices = 4, kThreads = kColumns * kSlices;

// Slices take every fourth word of a column.
template <int kRows>
__global__ void __launch_bounds__(kThreads) gemm_kernel(Operands x) {
  using Slices = float[kSlices][kRows][kColumns];
  XGEMM_STATIC_SHARED(Slices, slices);
  const int tid = static_cast<int>(threadIdx.x), slice = tid / kColumns;
  const int column = static_cast<int>(blockIdx.x) * kColumns + tid % kColumns;
  const int row0 = static_cast<int>(blockIdx.y) * kRows;
  float sums[kRows] = {};
  for (int word = slice; word < x.k / 8; word += kSlices) {
    const uint32_t codes = x.codes[int64_t{word} * x.n + column];
    const float scale = __half2float(x.scales[int64_t{word / (kGroup / 8)} * x.n + column]);
    float weights[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      weights[i] = static_cast<float>(static_cast<int>(codes >> 4 * i & 15) - 8) * scale;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = min(row0 + r, x.m - 1);
      const uint4 loaded = *reinterpret_cast<const uint4*>(x.x + int64_t{row} * x.k + word * 8);
      const auto* pairs = reinterpret_cast<const __half2*>(&loaded);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = __half22float2(pairs[i]);
        sums[r] += weights[2 * i] * pair.x + weights[2 * i + 1] * pair.y;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) slices[slice][r][tid % kColumns] = sums[r];
  __syncthreads();
  for (int r = slice; r < kRows; r += kSlices) {
    float sum = 0.0f;
#pragma unroll
    for (int other = 0; other < kSlices; ++other) sum += slices[other][r][tid % kColumns];
    if (row0 + r < x.m) x.y[int64_t{row0 + r} * x.n + column] = __float2half_rn(sum);
  }
}

template <int kRows>
Status launch(const QuantizedProduct& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kColumns), row_blocks(product, kRows));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder w4a16: rung 1", grid, gemm_kernel<kRows>, operands_of(product));
}

inline Status run(const QuantizedProduct& product) {
  return product.m == 1 ? launch<1>(product) : launch<16>(product);
}

}  // namespace xgemm::cuda::ladder::w4a16::rung1
