// Ladder w4a16, rung 4: a pipeline of four stages, filled by cp.async.
//
// Source:    MARLIN (Frantar et al., arXiv 2408.11743).
// Changed:   tiles of W, X and the scales are copied by cp.async, three ahead; X is swizzled; a
// warp
//            keeps the scales of a tile in registers.
// Published: nothing.
//
// While a tile of 128 k is multiplied, the next three are on their way: 12 KB of weights a block,
// whatever its warps do. X comes once for four warps instead of once for each 32 k of a warp, and
// L1 is out of the way of the weights.
//
// A lane reads 16 bytes of X, 8 lanes a turn: two rows, four pieces of 16 bytes each. Rows are 256
// bytes apart, which is the same bank, so odd rows have their pieces XORed by 4:
// `xgemm layout smem "lane / 4 * 256 + (lane % 4 ^ lane / 4 % 2 * 4) * 16" 16` counts no extra
// turn.
//
// What is wrong with it. A block has all of K for 64 columns: 4096 columns are 64 blocks on 132
// SMs, and 8192 are 128 blocks of which some SMs have one and some none.
#pragma once

#include "cuda/ladder/w4a16/packed.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/opaque.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::ladder::w4a16::rung4 {

inline constexpr int kThreads = 128, kBlockK = 128, kStages = 4;
inline constexpr int kPieces = kBlockK / 8;  // 16 bytes of a row of X

// Of odd rows, the pieces lie 4 apart.
__device__ constexpr int place_of(int row, int piece) {
  return row * kPieces + (piece ^ row % 2 * 4);
}

template <int kRows>
struct alignas(128) Stage {
  uint4 codes[kBlockK / 32][64];
  uint4 x[kRows * kPieces];
  uint4 scales[8];
};

template <int kRows>
__device__ inline void load_rows(RowFragments<kRows>& out, const Stage<kRows>& stage, int warp,
                                 int lane) {
#pragma unroll
  for (int i = 0; i < kRows / 8; ++i) {
    out[i] = stage.x[place_of(i * 8 + lane / 4, warp * 4 + lane % 4)];
  }
}

// A thread's copies of a tile, 16 bytes each: two of codes, 64 k apart, and some of X, 8 rows
// apart.
template <int kRows>
struct Copier {
  const uint4 *codes, *scales;  // of the next tile
  const __half* x;
  int64_t codes_step, scales_step, x_step;
  uint32_t to_codes, to_x, to_scales;  // in the first stage
  int rows;                            // of X from the thread's first one on

  __device__ Copier(const Operands& from, Stage<kRows>& first, int row, int tid) {
    const int units = from.n / kWarpColumns, unit = static_cast<int>(blockIdx.x);
    const int mine = tid / kPieces, piece = tid % kPieces;
    codes_step = int64_t{2} * units * 64, scales_step = int64_t{units} * 8;
    x_step = int64_t{8} * from.k, rows = from.m - row - mine;
    codes = reinterpret_cast<const uint4*>(from.codes) + int64_t{tid / 64} * units * 64 +
            unit * 64 + tid % 64;
    scales = reinterpret_cast<const uint4*>(from.scales) + unit * 8 + tid;
    x = from.x + int64_t{row + mine} * from.k + piece * 8;
    to_codes = ptx::smem_address(&first.codes[tid / 64][tid % 64]);
    to_x = ptx::smem_address(&first.x[place_of(mine, piece)]);
    to_scales = ptx::smem_address(&first.scales[tid % 8]);
  }

  // To the stage `offset` bytes behind the first; rows past the last one become zeros, unread.
  __device__ void copy(int offset, int tid) {
    for (int i = 0; i < 2; ++i) {
      ptx::cp_async<16>(to_codes + offset + i * kThreads * 16, codes + i * codes_step, 16);
    }
    const __half* line = x;
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      ptx::cp_async<16>(to_x + offset + i * 8 * kPieces * 16, line, i * 8 < rows ? 16 : 0);
      line = ptx::opaque(line + x_step);
    }
    if (tid < 8) ptx::cp_async<16>(to_scales + offset, scales, 16);
    codes += 2 * codes_step, scales += scales_step, x += kBlockK;
  }
};

template <int kRows>
__global__ void __launch_bounds__(kThreads) gemm_kernel(Operands x) {
  XGEMM_DYNAMIC_SHARED(uint4, raw, 128);
  auto* stages = reinterpret_cast<Stage<kRows>*>(raw);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int row = static_cast<int>(blockIdx.y) * kRows;
  Sums<kRows> sums = {};
  Copier<kRows> copier(x, stages[0], row, tid);
  constexpr int kStage = sizeof(Stage<kRows>), kPipeline = kStages * kStage;
  int left = x.k / kBlockK, write = 0;  // tiles to be copied; bytes from the first stage
  const auto copy_next = [&] {
    if (left-- > 0) copier.copy(write, tid);
    ptx::cp_async_commit_group();
    write = write + kStage == kPipeline ? 0 : write + kStage;
  };
  for (int tile = 0; tile < kStages - 1; ++tile) copy_next();
  for (int tile = 0; tile < x.k / kBlockK; ++tile) {
    ptx::cp_async_wait_group<kStages - 2>();
    __syncthreads();  // the tile is there, and the one before it has been read
    Fragments<kRows> fragments;
    const Stage<kRows>& stage = stages[tile % kStages];
    load_rows<kRows>(fragments.rows, stage, warp, lane);
    fragments.load_weights(stage.codes[warp], stage.scales, lane);
    copy_next();
    fragments.multiply_to(sums);
  }
  store<kRows>(x, sums, row, static_cast<int>(blockIdx.x) * kWarpColumns, tid);
}

template <int kRows>
Status launch(const QuantizedProduct& product) {
  static SharedMemoryLimit limit;
  constexpr int kSmemBytes = kStages * sizeof(Stage<kRows>);
  const auto kernel = gemm_kernel<kRows>;
  const cudaError_t raised = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes);
  if (raised != cudaSuccess) return {raised, "ladder w4a16: raising the limit of shared memory"};
  const dim3 blocks(static_cast<unsigned>(product.n / kWarpColumns), row_blocks(product, kRows));
  const Grid grid{
      .blocks = blocks, .threads = kThreads, .shared_bytes = kSmemBytes, .stream = product.stream};
  return launch_grid("ladder w4a16: rung 4", grid, kernel, operands_of(product));
}

inline Status run(const QuantizedProduct& product) {
  return few_rows(product) ? launch<16>(product) : launch<64>(product);
}

}  // namespace xgemm::cuda::ladder::w4a16::rung4
