// Ladder w4a16, rung 5: Marlin: equal stripes of tiles for every SM.
//
// Source:    MARLIN (Frantar et al., arXiv 2408.11743).
// Changed:   one block of 256 threads an SM; tiles of 64 k x 256 columns (128 x 128 up to 16 rows)
//            are numbered down columns and dealt out in equal stripes; blocks that share a column
//            add their sums in turn.
// Published: 646.8, 1693 and 2184 GB/s at one row (13.4, 35.8, 55.5 us): Marlin on an H200.
//
// 4096 x 4096 are 1024 tiles: 8 for each of 128 SMs. A stripe goes down a column of tiles and on to
// the next; copies run ahead across that border. At the end of a column, or of the stripe, warps
// add their sums in shared memory. Where other blocks have parts of the column, sums are added in
// turn, in global memory: first by the block with the column's end, which began its stripe with it,
// last by the one with its beginning, which ends with it and stores Y. A lock counts who has added;
// the last one leaves it at 0. Block 0 has the last stripe: blocks wait for those started earlier.
#pragma once

#include "cuda/ladder/w4a16/packed.cuh"
#include "cuda/ladder/w4a16/turns.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::w4a16::rung5 {

inline constexpr int kThreads = 256, kStages = 4;

// What a tile is: 32 k x 64 columns for each warp.
template <int kRows>
struct Tile {
  static constexpr int kK = kRows == 16 ? 128 : 64, kN = kRows == 16 ? 128 : 256;
  static constexpr int kWarpsK = kK / 32, kWarpsN = kN / kWarpColumns;
  static_assert(kWarpsK * kWarpsN * 32 == kThreads);

  int k, row, column;  // of Y, where it begins

  __device__ Tile(const Operands& x, int number)
      : k(number % (x.k / kK) * kK),
        row(number / (x.k / kK) % row_blocks(x) * kRows),
        column(number / (x.k / kK) / row_blocks(x) * kN) {}
  __device__ static int row_blocks(const Operands& x) { return (x.m + kRows - 1) / kRows; }
  __device__ static int count(const Operands& x) { return x.k / kK * row_blocks(x) * (x.n / kN); }
  __device__ bool ends_column(const Operands& x) const { return k + kK == x.k; }
  // Down the column of tiles, then to the next rows of X, which have the same weights.
  __device__ void next(const Operands& x) {
    k += kK;
    if (k < x.k) return;
    k = 0;
    row += kRows;
    if (row < x.m) return;
    row = 0;
    column += kN;
  }
};

// X as on rung 4.
template <int kRows>
struct alignas(128) Stage {
  using At = Tile<kRows>;
  static constexpr int kPieces = At::kK / 8;
  uint4 codes[At::kWarpsK * At::kWarpsN][64];
  uint4 x[kRows * kPieces];
  uint4 scales[At::kWarpsN * 8];

  __device__ static int place_of(int row, int piece) {
    return row * kPieces + (piece ^ row % 2 * 4);
  }
  __device__ void load(Fragments<kRows>& out, int warp, int lane) const {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      out.rows[i] = x[place_of(i * 8 + lane / 4, warp / At::kWarpsN * 4 + lane % 4)];
    }
    out.load_weights(codes[warp], scales + warp % At::kWarpsN * 8, lane);
  }
  // A thread's copies of a tile.
  __device__ void copy(const Operands& from, const At& tile, int tid) {
    const int units = from.n / kWarpColumns, unit = tile.column / kWarpColumns;
    const auto* all_codes = reinterpret_cast<const uint4*>(from.codes);
#pragma unroll
    for (int i = tid; i < At::kWarpsK * At::kWarpsN * 64; i += kThreads) {
      const int k = tile.k / 32 + i / 64 / At::kWarpsN, mine = unit + i / 64 % At::kWarpsN;
      ptx::cp_async<16>(ptx::smem_address(&codes[i / 64][i % 64]),
                        all_codes + (int64_t{k} * units + mine) * 64 + i % 64, 16);
    }
#pragma unroll
    for (int i = tid; i < kRows * kPieces; i += kThreads) {
      const int row = tile.row + i / kPieces;
      ptx::cp_async<16>(ptx::smem_address(&x[place_of(i / kPieces, i % kPieces)]),
                        from.x + int64_t{min(row, from.m - 1)} * from.k + tile.k + i % kPieces * 8,
                        row < from.m ? 16 : 0);
    }
    if (tid < At::kWarpsN * 8) {
      const auto* all_scales = reinterpret_cast<const uint4*>(from.scales);
      ptx::cp_async<16>(ptx::smem_address(&scales[tid]),
                        all_scales + (int64_t{tile.k / kGroup} * units + unit) * 8 + tid, 16);
    }
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
  turn.wait(tid);
#pragma unroll
  for (int chunk = 0; chunk < kRows / 16; ++chunk) {
    put_sums<kRows>(shared.slots[warp_k], sums, chunk, warp_n * kWarpColumns, tid % 32);
    __syncthreads();  // the sums are there
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
__global__ void __launch_bounds__(kThreads)
    gemm_kernel(Operands x, float* partials, uint64_t* locks) {
  XGEMM_DYNAMIC_SHARED(uint4, raw, 128);
  auto& shared = *reinterpret_cast<Shared<kRows>*>(raw);
  const int tid = static_cast<int>(threadIdx.x);
  const int count = Tile<kRows>::count(x), depth = x.k / Tile<kRows>::kK;
  const int blocks = static_cast<int>(gridDim.x), share = layout::stripe_share(count, blocks);
  const int stripe = blocks - 1 - static_cast<int>(blockIdx.x);
  const int first = stripe * share, end = min(first + share, count);
  Tile<kRows> tile(x, first), copied(x, first);
  const auto copy = [&](int number) {
    if (number < end) {
      shared.stages[number % kStages].copy(x, copied, tid);
      copied.next(x);
    }
    ptx::cp_async_commit_group();
  };
  for (int number = first; number < first + kStages - 1; ++number) copy(number);
  Sums<kRows> sums = {};
  for (int number = first; number < end; ++number) {
    ptx::cp_async_wait_group<kStages - 2>();
    __syncthreads();  // the tile is there, and the one before it has been read
    Fragments<kRows> fragments;
    shared.stages[number % kStages].load(fragments, tid / 32, tid % 32);
    copy(number + kStages - 1);
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

template <int kRows>
Status launch(const QuantizedProduct& product) {
  static SharedMemoryLimit limit;
  const auto kernel = gemm_kernel<kRows>;
  const cudaError_t raised =
      limit.raise(reinterpret_cast<const void*>(kernel), sizeof(Shared<kRows>));
  if (raised != cudaSuccess) return {raised, "ladder w4a16: raising the limit of shared memory"};
  const Grid grid{.blocks = static_cast<unsigned>(product.sm_count),
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
