// Ladder w4a16, rung 5: Marlin: equal stripes of tiles for every SM.
//
// Source:    MARLIN (Frantar et al., arXiv 2408.11743).
// Changed:   one or two blocks of 256 threads an SM; tiles of 64 k x 256 columns (128 x 128 up to
//            16 rows) are numbered down columns and dealt out in equal stripes; blocks that share a
//            column add their sums in turn.
// Published: 646.8, 1693 and 2184 GB/s at one row (13.4, 35.8, 55.5 us): Marlin on an H200.
//
// 4096 x 4096 are 1024 tiles: 8 for each of 128 SMs. A stripe goes down a column of tiles and on to
// the next; copies run ahead across that border. At the end of a column, or of the stripe, warps
// add their sums in shared memory. Where other blocks have parts of the column, sums are added in
// turn, in global memory: first by the block with the column's end, which began its stripe with it,
// last by the one with its beginning, which ends with it and stores Y. A lock counts who has added;
// the last one leaves it at 0. Block 0 has the last stripe: blocks wait for those started earlier.
#pragma once

#include "cuda/ladder/w4a16/stripe_tile.cuh"
#include "cuda/ladder/w4a16/turns.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::w4a16::rung5 {

inline constexpr int kStages = 4;

// A thread's copies of a tile: two of codes, one or two of X, and of some threads one of scales.
template <int kRows>
struct Copier {
  using At = Tile<kRows>;
  static constexpr int kPieces = Stage<kRows>::kPieces, kPassRows = kThreads / kPieces;
  At tile;                      // the next one
  const uint4 *codes, *scales;  // the thread's, of that
  const __half* x;
  int units, rows;                     // of 64 columns; of X from the thread's first one on
  uint32_t to_codes, to_x, to_scales;  // in the first stage

  __device__ Copier(const Operands& from, Stage<kRows>& first, int number, int tid)
      : tile(from, number), units(from.n / kWarpColumns) {
    to_codes = ptx::smem_address(&first.codes[tid / 64][tid % 64]);
    to_x = ptx::smem_address(&first.x[Stage<kRows>::place_of(tid / kPieces, tid % kPieces)]);
    to_scales = ptx::smem_address(&first.scales[tid % (At::kWarpsN * 8)]);
    begin_column(from, tid);
  }
  __device__ void begin_column(const Operands& from, int tid) {
    const int unit = tile.column / kWarpColumns, row = tile.row + tid / kPieces;
    const int k32 = tile.k / 32 + tid / 64 / At::kWarpsN;
    codes = reinterpret_cast<const uint4*>(from.codes) + tid % 64 +
            (int64_t{k32} * units + unit + tid / 64 % At::kWarpsN) * 64;
    scales = reinterpret_cast<const uint4*>(from.scales) + tid +
             (int64_t{tile.k / kGroup} * units + unit) * 8;
    x = from.x + int64_t{row} * from.k + tile.k + tid % kPieces * 8;
    rows = from.m - row;
  }
  // To the stage `offset` bytes behind the first; rows past the last one become zeros, unread.
  __device__ void copy(const Operands& from, int offset, int tid) {
    const int64_t k32 = int64_t{units} * 64;  // of codes
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::cp_async<16>(to_codes + offset + i * kThreads * 16, codes + i * (4 / At::kWarpsN) * k32,
                        16);
    }
#pragma unroll
    for (int i = 0; i < kRows / kPassRows; ++i) {
      ptx::cp_async<16>(to_x + offset + i * kThreads * 16, x + int64_t{i * kPassRows} * from.k,
                        i * kPassRows < rows ? 16 : 0);
    }
    if (tid < At::kWarpsN * 8) ptx::cp_async<16>(to_scales + offset, scales, 16);
    tile.next(from);
    codes += At::kWarpsK * k32, x += At::kK;
    if (tile.k % kGroup == 0) scales += int64_t{units} * 8;
    if (tile.k == 0) begin_column(from, tid);
  }
};

template <int kRows>
struct Shared {
  Stage<kRows> stages[kStages];
  Slots<Tile<kRows>::kWarpsK, Tile<kRows>::kN> slots;
};

// Adds the warps' sums, and those of blocks before this one, 16 rows at a time.
template <int kRows>
__device__ void add(const Operands& x, float* partials, const Turn& turn, Shared<kRows>& shared,
                    const Sums<kRows>& sums, const Tile<kRows>& tile, int tid) {
  using At = Tile<kRows>;
  const int warp_k = tid / 32 / At::kWarpsN, warp_n = tid / 32 % At::kWarpsN;
#pragma unroll
  for (int chunk = 0; chunk < kRows / 16; ++chunk) {
    put_sums<kRows>(shared.slots[warp_k], sums, chunk, warp_n * kWarpColumns, tid % 32);
    __syncthreads();  // the sums are there
    if (chunk == 0) turn.wait(tid);
    for (int i = tid; i < 16 * At::kN / 4; i += kThreads) {
      const int in = i / (At::kN / 4), at = i % (At::kN / 4) * 4, row = tile.row + chunk * 16 + in;
      if (row >= x.m) break;
      const auto slot = [&](int w) { return *reinterpret_cast<float4*>(&shared.slots[w][in][at]); };
      float4 sum = slot(0);
#pragma unroll
      for (int w = 1; w < At::kWarpsK; ++w) sum = sum + slot(w);
      const int64_t to = int64_t{row} * x.n + tile.column + at;
      auto* partial = reinterpret_cast<float4*>(partials + to);
      if (turn.number > 0) sum = sum + ptx::ld_global_cg(partial);
      if (turn.last()) {
        auto* y = reinterpret_cast<__half2*>(x.y + to);
        y[0] = __floats2half2_rn(sum.x, sum.y);
        y[1] = __floats2half2_rn(sum.z, sum.w);
      } else {
        *partial = sum;
      }
    }
    __syncthreads();  // and have been read
  }
  turn.pass(tid);
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, kRows == 16 ? 2 : 1)
    gemm_kernel(Operands x, float* partials, uint64_t* locks) {
  XGEMM_DYNAMIC_SHARED(uint4, raw, 128);
  auto& shared = *reinterpret_cast<Shared<kRows>*>(raw);
  const int tid = static_cast<int>(threadIdx.x);
  const int count = Tile<kRows>::count(x), depth = x.k / Tile<kRows>::kK;
  const int blocks = static_cast<int>(gridDim.x), share = layout::stripe_share(count, blocks);
  const int stripe = blocks - 1 - static_cast<int>(blockIdx.x);
  const int first = stripe * share, end = min(first + share, count);
  Tile<kRows> tile(x, first);
  Copier<kRows> copier(x, shared.stages[0], first, tid);
  constexpr int kStage = sizeof(Stage<kRows>), kPipeline = kStages * kStage;
  int left = end - first, write = 0, read = 0;  // tiles to be copied; bytes; a stage's number
  const auto copy_next = [&] {
    if (left-- > 0) copier.copy(x, write, tid);
    ptx::cp_async_commit_group();
    write = write + kStage == kPipeline ? 0 : write + kStage;
  };
  for (int stage = 0; stage < kStages - 1; ++stage) copy_next();
  Sums<kRows> sums = {};
  for (int number = first; number < end; ++number) {
    ptx::cp_async_wait_group<kStages - 2>();
    __syncthreads();  // the tile is there, and the one before it has been read
    Fragments<kRows> fragments;
    shared.stages[read].load(fragments, tid / 32, tid % 32);
    read = (read + 1) % kStages;
    copy_next();
    fragments.multiply_to(sums);
    if (tile.ends_column(x) || number + 1 == end) {
      const int column = number / depth, last_stripe = (column * depth + depth - 1) / share;
      const Turn turn{last_stripe - stripe, last_stripe - column * depth / share + 1,
                      locks + column};
      add<kRows>(x, partials, turn, shared, sums, tile, tid);
      clear<kRows>(sums);
    }
    tile.next(x);
  }
}

// Two hide each other's waiting; but each more that shares a column waits once more for its turn.
template <int kRows>
int blocks_per_sm(const QuantizedProduct& x) {
  const int64_t tiles = int64_t{x.n / Tile<kRows>::kN} * (x.k / Tile<kRows>::kK);
  return kRows == 16 && tiles >= int64_t{16} * x.sm_count ? 2 : 1;
}

template <int kRows>
Status launch(const QuantizedProduct& product) {
  static SharedMemoryLimit limit;
  const auto kernel = gemm_kernel<kRows>;
  const cudaError_t raised =
      limit.raise(reinterpret_cast<const void*>(kernel), sizeof(Shared<kRows>));
  if (raised != cudaSuccess) return {raised, "ladder w4a16: raising the limit of shared memory"};
  const auto blocks = static_cast<unsigned>(product.sm_count * blocks_per_sm<kRows>(product));
  const Grid grid{.blocks = blocks,
                  .threads = kThreads,
                  .shared_bytes = sizeof(Shared<kRows>),
                  .stream = product.stream};
  return launch_grid("ladder w4a16: rung 5", grid, kernel, operands_of(product),
                     static_cast<float*>(product.workspace), product.locks);
}

inline Status run(const QuantizedProduct& product) {
  return few_rows(product) ? launch<16>(product) : launch<64>(product);
}

inline int64_t workspace_bytes(const QuantizedProduct& product) {
  return int64_t{product.m} * product.n * 4;
}

}  // namespace xgemm::cuda::ladder::w4a16::rung5
