// Ladder w4a16, rung 3: weights packed once, 16 bytes a lane.
//
// Source:    MARLIN (Frantar et al., arXiv 2408.11743), which shuffles weights offline.
// Changed:   codes and scales lie in the order in which lanes want them (packed.cuh).
// Published: nothing.
//
// Weights are stored once and read at every token, so any order that helps the reader is free. A
// lane's 16 bytes are four fragments, of 16 columns each; a warp's load is 512 contiguous bytes
// instead of four rows of 32. Eight scales are one load, too. And the nibbles of a word are now
// paired as X is: nothing is left to permute.
//
// What is wrong with it. A warp waits for its loads, multiplies, and asks for the next: at one row
// the memory is idle most of the time.
#pragma once

#include "cuda/ladder/w4a16/packed.cuh"

namespace xgemm::cuda::ladder::w4a16::rung3 {

inline constexpr int kThreads = 128, kBlockK = 128;

template <int kRows>
__global__ void __launch_bounds__(kThreads) gemm_kernel(Operands x) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int unit = static_cast<int>(blockIdx.x), units = x.n / kWarpColumns;  // of 64 columns
  const int row = static_cast<int>(blockIdx.y) * kRows;
  const auto* codes = reinterpret_cast<const uint4*>(x.codes);
  const auto* scales = reinterpret_cast<const uint4*>(x.scales);
  Sums<kRows> sums = {};
  for (int k = warp * 32; k < x.k; k += kBlockK) {
    Fragments<kRows> fragments;
    load_rows<kRows>(fragments.rows, x, row, k, lane);
    fragments.load_weights(codes + (int64_t{k / 32} * units + unit) * 64,
                           scales + (int64_t{k / kGroup} * units + unit) * 8, lane);
    fragments.multiply_to(sums);
  }
  store<kRows>(x, sums, row, unit * kWarpColumns, tid);
}

template <int kRows>
Status launch(const QuantizedProduct& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kWarpColumns), row_blocks(product, kRows));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder w4a16: rung 3", grid, gemm_kernel<kRows>, operands_of(product));
}

inline Status run(const QuantizedProduct& product) {
  return few_rows(product) ? launch<16>(product) : launch<64>(product);
}

}  // namespace xgemm::cuda::ladder::w4a16::rung3
