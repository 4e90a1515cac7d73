// Ladder hopper, rung 8: registers where they are needed, and smaller things.
//
// Source:    Pranjal Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", kernel 9.
// Changed:   setmaxnreg moves registers from the producer to the consumers; the first wgmma of a
//            tile has scale-d 0 instead of sums set to zero; stores are written through.
// Published: 747 TFLOP/s on an H100.
//
// 384 threads get 168 registers each. setmaxnreg.dec gives all but 40 of the producer's back, and
// .inc takes 232 for the consumers: 128 * 40 + 256 * 232 is what there is. 128 sums and what a
// store needs then fit without moves between them.
//
// wgmma adds to its sums where its predicate scale-d is 1. With 0 it overwrites them, and the 64
// instructions that set a thread's sums to zero are gone.
//
// C is not read again. st.global.wt writes it through, and L2 keeps the panels of A and B.
//
// What is wrong with it. The stores: 64 of 4 bytes a thread, which fill 16 of a sector's 32 bytes
// at a time, and which the consumers issue themselves.
#pragma once

#include "cuda/ladder/hopper/sm90/common.cuh"
#include "cuda/ptx/setmaxnreg.h"
#include "cuda/ptx/st_wt.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::hopper::rung8 {

inline constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 64;
inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
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

// sums = A B^T, or sums += A B^T, 16 k at a time; 64 rows of A.
__device__ inline void multiply(Sums& sums, const Element* a, const Element* b, bool add) {
  const uint64_t a_tile = descriptor(a), b_tile = descriptor(b);
  ptx::wgmma_fence();
#pragma unroll
  for (int k16 = 0; k16 < kBlockK / 16; ++k16) {
    ptx::wgmma<Element, 0, 0>(sums, a_tile + k16 * kStepK16, b_tile + k16 * kStepK16,
                              add || k16 > 0);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
}

// As store_sums does, past L2's lines.
__device__ inline void store(const Sums& sums, Element* c, int n, int thread) {
  c += int64_t{thread / 32 * 16 + thread % 32 / 4} * n + thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < kBlockN / 2; i += 2) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(sums[i], sums[i + 1]);
    ptx::st_global_write_through(c + i / 4 * 8 + int64_t{i % 4 * 4} * n, pair);
  }
}

// A warpgroup: its 64 rows of each tile.
__device__ inline void consume(const Operands& x, Shared& shared, int rank, int consumer,
                               int thread) {
  PipelineState<kStages> state;
  for (int tile = blockIdx.x / kPair; tile < tile_count(x); tile += gridDim.x / kPair) {
    const auto [row, column] = place_of(x, tile);
    Sums sums;
    for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
      ptx::mbarrier_wait(&shared.full[state.stage], state.parity);
      multiply(sums, shared.a[state.stage] + consumer * 64 * kBlockK, shared.b[state.stage], k > 0);
      if (thread < kPair) ptx::mbarrier_arrive_cluster(&shared.empty[state.stage], thread);
    }
    const int first = row + rank * kBlockM + consumer * 64;
    store(sums, x.c + int64_t{first} * x.n + column, x.n, thread);
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
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (thread == 0) produce(x, shared, rank);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
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
  return launch_large("ladder hopper: rung 8", limit, grid, gemm_kernel, operands);
}

}  // namespace xgemm::cuda::ladder::hopper::rung8
