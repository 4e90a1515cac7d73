// Ladder hgemm, rung 4: mma in rung 1's tile, unpadded.
//
// Source:    the article "MMA, bank conflicts and swizzle".
// Changed:   a block of 8 warps makes 128 x 128 of C, a warp 64 x 32: 4 x 4 tiles of mma.
// Published: no time.
//
// The blocking of rung 1 with the instruction of rung 3: 4 ldmatrix of A and 4 of B serve 16 mma.
// The sums are rounded in registers and stored from there: C no longer goes through shared memory.
//
// What is wrong with it. The conflicts of rung 1 are back, and can now be counted. ldmatrix.x4
// reads four times 8 rows, one turn for each where no two rows share a bank. A's rows are 64 bytes:
// rows 0, 2, 4 and 6 begin in the same bank, so each of the four takes 4 turns, 12 more than
// needed. B's are 256 bytes: 8 turns for each, 14 more for an x2.
#pragma once

#include "cuda/ladder/hgemm/common.cuh"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::hgemm::rung4 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 32;
inline constexpr int kThreads = 256;
inline constexpr int kWarpM = 64, kWarpN = 32;  // 2 x 4 warps

// Where an element lies in its tile: row after row.
__device__ constexpr int offset_a(int row, int k) { return row * kBlockK + k; }
__device__ constexpr int offset_b(int k, int column) { return k * kBlockN + column; }

struct Tiles {
  alignas(128) __half a[kBlockM * kBlockK];
  alignas(128) __half b[kBlockK * kBlockN];
};

// Each thread copies two times 8 elements of A, and of B.
__device__ inline void load_tiles(const Matrices& x, Tiles& tiles, int tid, int k0) {
  const int row0 = static_cast<int>(blockIdx.y) * kBlockM;
  const int column0 = static_cast<int>(blockIdx.x) * kBlockN;
#pragma unroll
  for (int i = tid; i < kBlockM * kBlockK / 8; i += kThreads) {
    const int row = i / (kBlockK / 8), k = i % (kBlockK / 8) * 8;
    copy8(&tiles.a[offset_a(row, k)], x.a + int64_t{row0 + row} * x.k + k0 + k);
  }
#pragma unroll
  for (int i = tid; i < kBlockK * kBlockN / 8; i += kThreads) {
    const int k = i / (kBlockN / 8), column = i % (kBlockN / 8) * 8;
    copy8(&tiles.b[offset_b(k, column)], x.b + int64_t{k0 + k} * x.n + column0 + column);
  }
}

using Sums = float[kWarpM / 16][kWarpN / 8][4];

// The products of 16 k.
__device__ inline void multiply(Sums& sums, const Tiles& tiles, int k, int row, int column,
                                int lane) {
  uint32_t a[kWarpM / 16][4], b[kWarpN / 8][2];
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
    const int offset = offset_a(row + i * 16 + lane % 16, k + lane / 16 * 8);
    ptx::ldmatrix_x4(a[i], ptx::smem_address(&tiles.a[offset]));
  }
#pragma unroll
  for (int j = 0; j < kWarpN / 8; ++j) {
    const int offset = offset_b(k + lane % 16, column + j * 8);
    ptx::ldmatrix_x2_trans(b[j], ptx::smem_address(&tiles.b[offset]));
  }
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpN / 8; ++j) {
      ptx::mma_m16n8k16<__half>(sums[i][j], a[i], b[j][0], b[j][1]);
    }
  }
}

// The four sums of a lane: columns 2 (lane % 4) and + 1 of rows lane / 4 and lane / 4 + 8.
__device__ inline void store_tile(const float (&sums)[4], __half* c, int n, int lane) {
  const auto [row, column] = layout::fragment_place(16, 8, lane, 0);
  c += int64_t{row} * n + column;
  *reinterpret_cast<__half2*>(c) = __floats2half2_rn(sums[0], sums[1]);
  *reinterpret_cast<__half2*>(c + int64_t{8} * n) = __floats2half2_rn(sums[2], sums[3]);
}

__device__ inline void store(const Matrices& x, const Sums& sums, int row, int column, int lane) {
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpN / 8; ++j) {
      store_tile(sums[i][j], x.c + int64_t{row + i * 16} * x.n + column + j * 8, x.n, lane);
    }
  }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  XGEMM_STATIC_SHARED(Tiles, tiles);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int warp_row = warp / 4 * kWarpM, warp_column = warp % 4 * kWarpN;
  Sums sums = {};
  for (int k0 = 0; k0 < x.k; k0 += kBlockK) {
    load_tiles(x, tiles, tid, k0);
    __syncthreads();  // the tiles are there
#pragma unroll
    for (int k = 0; k < kBlockK; k += 16) {
      multiply(sums, tiles, k, warp_row, warp_column, lane);
    }
    __syncthreads();  // and have been read
  }
  const int row = static_cast<int>(blockIdx.y) * kBlockM + warp_row;
  const int column = static_cast<int>(blockIdx.x) * kBlockN + warp_column;
  store(x, sums, row, column, lane);
}

inline Status run(const Product& product) {
  const dim3 blocks(static_cast<unsigned>(product.n / kBlockN),
                    static_cast<unsigned>(product.m / kBlockM));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder hgemm: rung 4", grid, gemm_kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::hgemm::rung4
