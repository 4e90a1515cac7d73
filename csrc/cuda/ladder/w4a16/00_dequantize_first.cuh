// Ladder w4a16, rung 0: dequantize, then GEMM.
//
// Source:    ours: what a library does that has a GEMM and no kernel for 4-bit weights.
// Changed:   the start of the ladder.
// Published: nothing.
//
// A first launch writes W as fp16, transposed, so that k is contiguous; a second one multiplies. A
// warp makes 64 columns of Y for all rows of its block. It loads its fragments straight from global
// memory, 16 bytes a lane; the four warps of a block share the same columns, take 32 k each in
// turn, and add their sums at the end.
//
// What is wrong with it. 4-bit weights are stored because reading them is what takes the time. Here
// they are read (n k / 2 bytes), written (2 n k) and read again (2 n k): nine times the bytes.
#pragma once

#include "cuda/ladder/w4a16/common.cuh"

namespace xgemm::cuda::ladder::w4a16::rung0 {

inline constexpr int kThreads = 128, kBlockK = 128;
inline constexpr int kDequantizeThreads = 256;

// A thread takes a word. A warp takes 8 columns of 4 words: 32 bytes of each row of words are read,
// 64 of each column are written.
__global__ void __launch_bounds__(kDequantizeThreads) dequantize_kernel(Operands x, __half* w) {
  const auto index = static_cast<int>(blockIdx.x * kDequantizeThreads + threadIdx.x);
  const int lane = index % 32, warp = index / 32;
  const int column = warp % (x.n / 8) * 8 + lane / 4, word = warp / (x.n / 8) * 4 + lane % 4;
  const uint32_t codes = x.codes[int64_t{word} * x.n + column];
  const float scale = __half2float(x.scales[int64_t{word / (kGroup / 8)} * x.n + column]);
  alignas(16) __half out[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int code = static_cast<int>(codes >> 4 * i & 15);
    out[i] = __float2half_rn(static_cast<float>(code - 8) * scale);
  }
  *reinterpret_cast<uint4*>(w + int64_t{column} * x.k + word * 8) =
      *reinterpret_cast<const uint4*>(out);
}

// w: [n, k]
template <int kRows>
__global__ void __launch_bounds__(kThreads) gemm_kernel(Operands x, const __half* w) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int column = static_cast<int>(blockIdx.x) * kWarpColumns;
  const int row = static_cast<int>(blockIdx.y) * kRows;
  w += int64_t{column + lane / 4} * x.k + lane % 4 * 8;
  Sums<kRows> sums = {};
  for (int k = warp * 32; k < x.k; k += kBlockK) {
    RowFragments<kRows> rows;
    load_rows<kRows>(rows, x, row, k, lane);
#pragma unroll
    for (int i = 0; i < kWarpColumns / 16; ++i) {
      const __half* from = w + int64_t{i * 16} * x.k + k;
      const uint4 low = *reinterpret_cast<const uint4*>(from);
      const uint4 high = *reinterpret_cast<const uint4*>(from + int64_t{8} * x.k);
      const uint32_t first[4] = {low.x, high.x, low.y, high.y};
      const uint32_t second[4] = {low.z, high.z, low.w, high.w};
      multiply<kRows>(sums[i], first, rows, 0);
      multiply<kRows>(sums[i], second, rows, 1);
    }
  }
  store<kRows>(x, sums, row, column, tid);
}

template <int kRows>
Status launch(const QuantizedProduct& product) {
  auto* w = static_cast<__half*>(product.workspace);
  const auto words = static_cast<unsigned>(int64_t{product.n} * product.k / 8);
  const Grid first{.blocks = words / kDequantizeThreads,
                   .threads = kDequantizeThreads,
                   .stream = product.stream};
  const Status status = launch_grid("ladder w4a16: rung 0's first launch", first, dequantize_kernel,
                                    operands_of(product), w);
  if (!status.ok()) return status;
  const dim3 blocks(static_cast<unsigned>(product.n / kWarpColumns), row_blocks(product, kRows));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder w4a16: rung 0", grid, gemm_kernel<kRows>, operands_of(product), w);
}

inline Status run(const QuantizedProduct& product) {
  return few_rows(product) ? launch<16>(product) : launch<64>(product);
}

inline int64_t workspace_bytes(const QuantizedProduct& product) {
  return int64_t{product.n} * product.k * 2;
}

}  // namespace xgemm::cuda::ladder::w4a16::rung0
