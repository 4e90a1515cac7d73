// Ladder hopper, rung 5: persistent blocks.
//
// Source:    Pranjal Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", kernel 6.
// Changed:   as many blocks as SMs, each of which makes tile after tile; tiles are dealt in groups
//            of 16 rows of tiles.
// Published: 660 TFLOP/s on an H100.
//
// The producer does not stop at the end of a tile: while the consumers store one, the first four
// places of the next are filled. The barriers' phases run on across tiles, and a block sets up
// once.
//
// Tiles with neighbouring numbers run at the same time. In groups of 16 rows of tiles, down first,
// 132 of them make 16 x 8.25 tiles of C, about 2048 x 2112: they read 16 row panels of A and 9
// column panels of B. In the order of rung 4 they were 4.1 rows of 32 tiles: 5 panels of A and 32,
// each twice as large, of B. What is read by several SMs at about the same time comes from L2.
//
// What is wrong with it. 257 threads arrive at each barrier, for each 64 k.
#pragma once

#include "cuda/ladder/hopper/sm90/common.cuh"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::hopper::rung5 {

inline constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 64;
inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kStages = 4, kGroup = 16;

struct Shared {
  alignas(1024) Element a[kStages][kBlockM * kBlockK];
  alignas(1024) Element b[kStages][kBlockN * kBlockK];
  uint64_t full[kStages], empty[kStages];
};

inline constexpr int kTileBytes = (kBlockM + kBlockN) * kBlockK * sizeof(Element);

__device__ inline int tile_count(const Operands& x) { return x.m / kBlockM * (x.n / kBlockN); }

// Of a tile: down a group of rows of tiles first, then to the next column of tiles.
__device__ inline layout::Place place_of(const Operands& x, int tile) {
  const auto [row, column] = layout::grouped_tile(tile, x.m / kBlockM, x.n / kBlockN, kGroup);
  return {row * kBlockM, column * kBlockN};
}

// One thread.
__device__ inline void produce(const Operands& x, Shared& shared) {
  PipelineState<kStages> state;
  for (int tile = blockIdx.x; tile < tile_count(x); tile += gridDim.x) {
    const auto [row, column] = place_of(x, tile);
    for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
      uint64_t *full = &shared.full[state.stage], *empty = &shared.empty[state.stage];
      ptx::mbarrier_arrive(empty);
      ptx::mbarrier_wait(empty, state.parity);
      ptx::mbarrier_arrive_expect_tx(full, kTileBytes);
      ptx::tma_load_2d(shared.a[state.stage], &x.a, full, k, row);
      ptx::tma_load_2d(shared.b[state.stage], &x.b, full, k, column);
    }
  }
}

using Sums = float[kBlockN / 2];

// sums += A B^T, 16 k at a time; 64 rows of A.
__device__ inline void multiply(Sums& sums, const Element* a, const Element* b) {
  const uint64_t a_tile = descriptor(a), b_tile = descriptor(b);
  ptx::wgmma_fence();
#pragma unroll
  for (int k16 = 0; k16 < kBlockK / 16; ++k16) {
    ptx::wgmma<Element, 0, 0>(sums, a_tile + k16 * kStepK16, b_tile + k16 * kStepK16, 1);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
}

// A warpgroup: its 64 rows of each tile.
__device__ inline void consume(const Operands& x, Shared& shared, int consumer, int thread) {
  for (int stage = 0; stage < kStages; ++stage) ptx::mbarrier_arrive(&shared.empty[stage]);
  PipelineState<kStages> state;
  for (int tile = blockIdx.x; tile < tile_count(x); tile += gridDim.x) {
    const auto [row, column] = place_of(x, tile);
    Sums sums = {};
    for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
      ptx::mbarrier_arrive(&shared.full[state.stage]);
      ptx::mbarrier_wait(&shared.full[state.stage], state.parity);
      multiply(sums, shared.a[state.stage] + consumer * 64 * kBlockK, shared.b[state.stage]);
      ptx::mbarrier_arrive(&shared.empty[state.stage]);
    }
    store_sums(sums, x.c + int64_t{row + consumer * 64} * x.n + column, x.n, thread);
  }
}

__global__ void __launch_bounds__(kThreads, 1) gemm_kernel(const __grid_constant__ Operands x) {
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 16);
  auto& shared = aligned<Shared>(raw);
  const int warpgroup = warpgroup_index(), thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(&shared.full[stage], 1 + kConsumers * kWarpgroup);
      ptx::mbarrier_init(&shared.empty[stage], 1 + kConsumers * kWarpgroup);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warpgroup == 0) {
    if (thread == 0) produce(x, shared);
  } else {
    consume(x, shared, warpgroup - 1, thread);
  }
}

inline Status run(const Product& product) {
  static SharedMemoryLimit limit;
  Operands operands;
  const Status made = make_operands(product, kBlockM, kBlockN, &operands);
  if (!made.ok()) return made;
  const Grid grid{.blocks = dim3(static_cast<unsigned>(product.sm_count)),
                  .threads = kThreads,
                  .shared_bytes = kSmemBytes<Shared>,
                  .stream = product.stream};
  return launch_large("ladder hopper: rung 5", limit, grid, gemm_kernel, operands);
}

}  // namespace xgemm::cuda::ladder::hopper::rung5
