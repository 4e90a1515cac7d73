// Ladder hgemm, rung 3: mma.m16n8k16, whose fragments are known.
//
// Source:    LeetCUDA (xlite-dev), HGEMM in CUDA C++: the naive mma kernel.
// Changed:   starts over: a warp is a block, and makes one 16 x 8 tile of C by mma.sync; ldmatrix
//            loads the fragments from shared memory.
// Published: no time.
//
// mma.sync is what wmma is made of. The manual says which lane holds what:
//
//   A 16 x 16   lane 4 g + t has rows g and g + 8, columns 2 t, 2 t + 1 and 8 more     4 registers
//   B 16 x 8    column g, rows 2 t, 2 t + 1 and 8 more                                 2 registers
//   C 16 x 8    rows g and g + 8, columns 2 t and 2 t + 1                              4 floats
//
// ldmatrix loads exactly that: each lane gives the address of one row of 16 bytes, and 8 x 8
// matrices land in the lanes, row g in lanes 4 g .. 4 g + 3. x4 loads A's four quarters. B lies
// with n contiguous but is wanted by columns, which .trans does on the way: x2.trans loads both
// halves of its 16 rows.
//
// What is wrong with it. Everything that rung 0 got wrong: one mma for each load of its operands.
#pragma once

#include "cuda/ladder/hgemm/common.cuh"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::hgemm::rung3 {

inline constexpr int kBlockM = 16, kBlockN = 8, kBlockK = 16;
inline constexpr int kThreads = 32;

struct Tiles {
  alignas(128) __half a[kBlockM][kBlockK];
  alignas(128) __half b[kBlockK][kBlockN];
};

// The four sums of a lane: columns 2 (lane % 4) and + 1 of rows lane / 4 and lane / 4 + 8.
__device__ inline void store_tile(const float (&sums)[4], __half* c, int n, int lane) {
  const auto [row, column] = layout::fragment_place(16, 8, lane, 0);
  c += int64_t{row} * n + column;
  *reinterpret_cast<__half2*>(c) = __floats2half2_rn(sums[0], sums[1]);
  *reinterpret_cast<__half2*>(c + int64_t{8} * n) = __floats2half2_rn(sums[2], sums[3]);
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  XGEMM_STATIC_SHARED(Tiles, tiles);
  const int lane = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y) * kBlockM;
  const int column = static_cast<int>(blockIdx.x) * kBlockN;
  float sums[4] = {};
  for (int k = 0; k < x.k; k += kBlockK) {
    copy8(&tiles.a[lane / 2][lane % 2 * 8], x.a + int64_t{row + lane / 2} * x.k + k + lane % 2 * 8);
    if (lane < 16) copy8(&tiles.b[lane][0], x.b + int64_t{k + lane} * x.n + column);
    __syncwarp();  // the tiles are there
    uint32_t a[4], b[2];
    ptx::ldmatrix_x4(a, ptx::smem_address(&tiles.a[lane % 16][lane / 16 * 8]));
    ptx::ldmatrix_x2_trans(b, ptx::smem_address(&tiles.b[lane % 16][0]));
    ptx::mma_m16n8k16<__half>(sums, a, b[0], b[1]);
    __syncwarp();  // and have been read
  }
  store_tile(sums, x.c + int64_t{row} * x.n + column, x.n, lane);
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kBlockN),
                    static_cast<unsigned>(product.m / kBlockM));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder hgemm: rung 3", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::hgemm::rung3
