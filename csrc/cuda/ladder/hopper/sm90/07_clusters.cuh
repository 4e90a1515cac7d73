// Ladder hopper, rung 7: clusters of two, and multicast.
//
// Source:    Pranjal Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", kernel 8.
// Changed:   two blocks of a cluster make tiles below each other; each loads half of B's tile, into
//            the shared memory of both.
// Published: 734 TFLOP/s on an H100.
//
// A multicast copy reads L2 once and writes the same place in every block of the mask; the bytes
// are counted by the barrier at the same place in each. A block of the pair now reads 16 + 16 KB of
// L2 for 64 k, where it read 16 + 32.
//
// A place of the pipeline is written by both blocks, so it is empty only when the consumers of both
// have read theirs: each consumer arrives at both "empty" barriers, its own and, by mapa, the
// other's. The first copies need all barriers of the cluster, and no block may end while the other
// still arrives at its barriers: the cluster meets at the beginning and at the end.
//
// What is wrong with it. A consumer wants more than the 168 registers that 384 threads leave for
// each, and a producer needs few.
#pragma once

#include "cuda/ladder/hopper/sm90/common.cuh"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::hopper::rung7 {

inline constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 64;
inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kStages = 4, kGroup = 8;              // group: pairs
inline constexpr int kPair = 2, kPairM = kPair * kBlockM;  // blocks of a cluster, and their rows

struct Shared {
  alignas(1024) Element a[kStages][kBlockM * kBlockK];
  alignas(1024) Element b[kStages][kBlockN * kBlockK];
  uint64_t full[kStages], empty[kStages];
};

inline constexpr int kTileBytes = (kBlockM + kBlockN) * kBlockK * sizeof(Element);

// Tiles of a pair.
__device__ inline int tile_count(const Operands& x) { return x.m / kPairM * (x.n / kBlockN); }

// Of a pair's tile: down a group of rows of tiles first, then to the next column of tiles.
__device__ inline layout::Place place_of(const Operands& x, int tile) {
  const auto [row, column] = layout::grouped_tile(tile, x.m / kPairM, x.n / kBlockN, kGroup);
  return {row * kPairM, column * kBlockN};
}

// One thread.
__device__ inline void produce(const Operands& x, Shared& shared, int rank) {
  constexpr int kHalf = kBlockN / kPair;
  constexpr uint16_t kBoth = 3;
  PipelineState<kStages> state;
  for (int tile = blockIdx.x / kPair; tile < tile_count(x); tile += gridDim.x / kPair) {
    const auto [row, column] = place_of(x, tile);
    for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
      uint64_t *full = &shared.full[state.stage], *empty = &shared.empty[state.stage];
      ptx::mbarrier_wait(empty, state.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, kTileBytes);
      ptx::tma_load_2d(shared.a[state.stage], &x.a, full, k, row + rank * kBlockM);
      ptx::tma_load_multicast_2d(shared.b[state.stage] + rank * kHalf * kBlockK, &x.b, full, kBoth,
                                 k, column + rank * kHalf);
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
__device__ inline void consume(const Operands& x, Shared& shared, int rank, int consumer,
                               int thread) {
  PipelineState<kStages> state;
  for (int tile = blockIdx.x / kPair; tile < tile_count(x); tile += gridDim.x / kPair) {
    const auto [row, column] = place_of(x, tile);
    Sums sums = {};
    for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
      ptx::mbarrier_wait(&shared.full[state.stage], state.parity);
      multiply(sums, shared.a[state.stage] + consumer * 64 * kBlockK, shared.b[state.stage]);
      if (thread < kPair) ptx::mbarrier_arrive_cluster(&shared.empty[state.stage], thread);
    }
    const int first = row + rank * kBlockM + consumer * 64;
    store_sums(sums, x.c + int64_t{first} * x.n + column, x.n, thread);
  }
}

__global__ void __launch_bounds__(kThreads, 1) gemm_kernel(const __grid_constant__ Operands x) {
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 16);
  auto& shared = aligned<Shared>(raw);
  const int warpgroup = warpgroup_index(), thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int rank = static_cast<int>(ptx::cluster_cta_rank());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(&shared.full[stage], 1);
      ptx::mbarrier_init(&shared.empty[stage], kPair * kConsumers);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();  // the barriers of both blocks stand
  if (warpgroup == 0) {
    if (thread == 0) produce(x, shared, rank);
  } else {
    consume(x, shared, rank, warpgroup - 1, thread);
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();  // nobody arrives at this block's barriers any more
}

inline Status run(const Product& product) {
  static SharedMemoryLimit limit;
  Operands operands;
  const Status made = make_operands(product, kBlockM, kBlockN / kPair, &operands);
  if (!made.ok()) return made;
  const Grid grid{.blocks = dim3(static_cast<unsigned>(product.sm_count / kPair * kPair)),
                  .threads = kThreads,
                  .shared_bytes = kSmemBytes<Shared>,
                  .stream = product.stream,
                  .cluster = dim3(kPair)};
  return launch_large("ladder hopper: rung 7", limit, grid, gemm_kernel, operands);
}

}  // namespace xgemm::cuda::ladder::hopper::rung7
