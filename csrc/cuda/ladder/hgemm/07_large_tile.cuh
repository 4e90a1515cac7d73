// Ladder hgemm, rung 7: a tile of 128 x 256, double-buffered fragments, a grouped order.
//
// Source:    ours: what the product's kernel for Ampere does (csrc/cuda/gemm/sm80), step by step.
// Changed:   a warp makes 64 x 64 of C; it loads the fragments of the next 16 k before it
//            multiplies those of the last; addresses are kept; blocks that run together lie in
//            groups of 8 rows of tiles.
// Published: nothing.
//
// A warp tile of 64 x 64 reads 4 KB of shared memory for 65,536 multiply-adds: a third less for
// each than 64 x 32. Its 128 sums and two sets of fragments fill the registers of one block an SM.
// With 8 warps only, latency is covered by order: the ldmatrix of step k + 1 are issued before the
// mma of step k, over the edge of the tile, too. x4.trans loads two tiles of B at once.
//
// In rung 6's loop 430 of 462 instructions are not mma: most compute addresses anew. Here a thread
// keeps two global pointers and two shared addresses. The swizzle is an XOR within a line of 128
// bytes, so another 16 k of A or another 16 columns of B is another XOR of the lane's own address,
// and everything else is added as a constant. Tiles of 64 k halve the number of barriers, and
// copies are spread over the steps. Those past the last tile read that one again: no branch.
//
// Blocks are numbered so that those which run at the same time make a square of C, not a strip:
// they read fewer different rows of A and columns of B, and more of what they read is in L2.
#pragma once

#include "cuda/ladder/hgemm/common.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/ptx/opaque.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::hgemm::rung7 {

inline constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 64;
inline constexpr int kThreads = 256;
inline constexpr int kWarpM = 64, kWarpN = 64;  // 2 x 4 warps
inline constexpr int kStages = 3, kSteps = kBlockK / 16, kGroup = 8;
inline constexpr int kLineA = kBlockK * 2, kLineB = kBlockN * 2;  // bytes

// Of a line, the number XORs that of its 16 bytes, within each 128.
struct Tiles {
  alignas(128) __half a[kBlockM * kBlockK];
  alignas(128) __half b[kBlockK * kBlockN];
};

inline constexpr int kSmemBytes = kStages * sizeof(Tiles);

// The block's tile: down a group of rows of tiles first, then to the next column of tiles.
__device__ inline layout::Place place_of(const Matrices& x) {
  const auto index = static_cast<int>(blockIdx.x);
  const auto [row, column] = layout::grouped_tile(index, x.m / kBlockM, x.n / kBlockN, kGroup);
  return {row * kBlockM, column * kBlockN};
}

// A thread's copies of a tile: 4 times 16 bytes of A, 32 rows apart, and 8 of B, 8 k apart.
struct Copier {
  const __half *a, *b;
  int64_t step_a, step_b;  // from one copy to the next
  uint32_t to_a, to_b;     // in the first of the pipeline's tiles
  int left;                // tiles that are still to be copied

  __device__ Copier(const Matrices& x, const Tiles& tiles, layout::Place place, int tid)
      : a(x.a + int64_t{place.row + tid / 8} * x.k + tid % 8 * 8),
        b(x.b + int64_t{tid / 32} * x.n + place.column + tid % 32 * 8),
        step_a(int64_t{32} * x.k),
        step_b(int64_t{8} * x.n),
        to_a(ptx::smem_address(tiles.a) + tid / 8 * kLineA + (tid % 8 ^ tid / 8 % 8) * 16),
        to_b(ptx::smem_address(tiles.b) + tid / 32 * kLineB + (tid % 32 ^ tid / 32) * 16),
        left(x.k / kBlockK) {}

  // A third of a tile, to `offset` bytes behind the first one: A, or half of B.
  __device__ void copy(int third, int offset) const {
    const __half* from = third == 0 ? a : b + (third - 1) * 4 * step_b;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int line = third == 0 ? i * 32 * kLineA : ((third - 1) * 4 + i) * 8 * kLineB;
      ptx::cp_async<16>((third == 0 ? to_a : to_b) + offset + line, from, 16);
      from = ptx::opaque(from + (third == 0 ? step_a : step_b));
    }
  }
  __device__ void end_tile() {
    ptx::cp_async_commit_group();
    const bool more = --left > 0;
    a += more ? kBlockK : 0;
    b += more ? 8 * step_b : 0;
  }
};

// What a warp multiplies in 16 k; a, b: the lane's addresses in a tile.
struct Fragments {
  uint32_t a[kWarpM / 16][4], b[kWarpN / 16][4];

  __device__ void load(uint32_t from_a, uint32_t from_b, int offset, int step) {
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) {
      ptx::ldmatrix_x4(a[i], (from_a ^ step * 32) + i * 16 * kLineA + offset);
    }
#pragma unroll
    for (int j = 0; j < kWarpN / 16; ++j) {
      ptx::ldmatrix_x4_trans(b[j], (from_b ^ j * 32) + step * 16 * kLineB + offset);
    }
  }
};

using Sums = float[kWarpM / 16][kWarpN / 8][4];

__device__ inline void multiply(Sums& sums, const Fragments& x) {
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpN / 8; ++j) {
      ptx::mma_m16n8k16<__half>(sums[i][j], x.a[i], x.b[j / 2][j % 2 * 2],
                                x.b[j / 2][j % 2 * 2 + 1]);
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
  XGEMM_DYNAMIC_SHARED(Tiles, tiles, 128);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int warp_row = warp / 4 * kWarpM, warp_column = warp % 4 * kWarpN;
  const layout::Place place = place_of(x);
  const int twist = (lane / 16 ^ lane % 8) * 16;
  const uint32_t a = ptx::smem_address(tiles[0].a) + (warp_row + lane % 16) * kLineA + twist;
  const uint32_t b = ptx::smem_address(tiles[0].b) + lane % 16 * kLineB + warp_column * 2 + twist;
  constexpr int kTile = sizeof(Tiles), kLast = (kStages - 1) * kTile;
  Copier copier(x, tiles[0], place, tid);
  for (int tile = 0; tile < kStages - 1; ++tile) {
    for (int third = 0; third < 3; ++third) copier.copy(third, tile * kTile);
    copier.end_tile();
  }
  ptx::cp_async_wait_group<kStages - 2>();
  __syncthreads();
  Sums sums = {};
  Fragments fragments[2];
  fragments[0].load(a, b, 0, 0);
  int read = 0, write = kLast;  // bytes from the first tile of the pipeline
#pragma unroll 1
  for (int k0 = 0; k0 < x.k; k0 += kBlockK) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps - 1) {
        read = read == kLast ? 0 : read + kTile;
        ptx::cp_async_wait_group<kStages - 2>();
        __syncthreads();  // the next tile is there, and all of this one is in registers
      }
      fragments[(step + 1) % 2].load(a, b, read, (step + 1) % kSteps);
      if (step < 3) copier.copy(step, write);
      multiply(sums, fragments[step % 2]);
      if (step == 2) copier.end_tile();
    }
    write = write == kLast ? 0 : write + kTile;
  }
  ptx::cp_async_wait_group<0>();
  store(x, sums, place.row + warp_row, place.column + warp_column, lane);
}

inline Status run(const Product& product) {
  static SharedMemoryLimit limit;
  const auto kernel = gemm_kernel;
  const cudaError_t raised = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes);
  if (raised != cudaSuccess) return {raised, "ladder hgemm: raising the limit of shared memory"};
  const Grid grid{
      .blocks = dim3(static_cast<unsigned>(product.m / kBlockM * (product.n / kBlockN))),
      .threads = kThreads,
      .shared_bytes = kSmemBytes,
      .stream = product.stream};
  return launch_grid("ladder hgemm: rung 7", grid, kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::hgemm::rung7
