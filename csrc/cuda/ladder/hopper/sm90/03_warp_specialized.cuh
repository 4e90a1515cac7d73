// Ladder hopper, rung 3: a producer and a consumer.
//
// Source:    Pranjal Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", kernel 4.
// Changed:   a warpgroup loads and another one multiplies; a pipeline of five tiles lies between
//            them, each with two barriers.
// Published: 498 TFLOP/s on an H100.
//
// The producer waits until a place of the pipeline is empty, announces the bytes and starts the
// copies; then it goes on to the next place. The consumer waits until a place is full, multiplies,
// and says that it is empty. Neither waits for the other's work, only for room or data: up to four
// tiles are on their way while one is multiplied.
//
// A barrier has a phase for each pass over the pipeline; a thread waits for the phase of a given
// parity to end. Here all threads of the consumer arrive at both barriers, and one of the producer:
// 129. At first the consumer says that all places are empty.
//
// What is wrong with it. While the one consumer waits for a barrier nobody multiplies. And a tile
// of 128 x 128 loads 32 KB for 64 k; twice the tile would load 48 KB for twice the products, and
// the registers of another warpgroup have room for its sums.
#pragma once

#include "cuda/ladder/hopper/sm90/common.cuh"

namespace xgemm::cuda::ladder::hopper::rung3 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 64;
inline constexpr int kConsumers = 1, kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kStages = 5;

struct Shared {
  alignas(1024) Element a[kStages][kBlockM * kBlockK];
  alignas(1024) Element b[kStages][kBlockN * kBlockK];
  uint64_t full[kStages], empty[kStages];
};

inline constexpr int kTileBytes = (kBlockM + kBlockN) * kBlockK * sizeof(Element);

// One thread.
__device__ inline void produce(const Operands& x, Shared& shared, int row, int column) {
  PipelineState<kStages> state;
  for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
    uint64_t *full = &shared.full[state.stage], *empty = &shared.empty[state.stage];
    ptx::mbarrier_arrive(empty);
    ptx::mbarrier_wait(empty, state.parity);
    ptx::mbarrier_arrive_expect_tx(full, kTileBytes);
    ptx::tma_load_2d(shared.a[state.stage], &x.a, full, k, row);
    ptx::tma_load_2d(shared.b[state.stage], &x.b, full, k, column);
  }
}

using Sums = float[kBlockM / 64][kBlockN / 2];

// sums += A B^T, 16 k at a time, each 64 rows of A by an instruction.
__device__ inline void multiply(Sums& sums, const Element* a, const Element* b) {
  ptx::wgmma_fence();
#pragma unroll
  for (int half = 0; half < kBlockM / 64; ++half) {
    const uint64_t a_tile = descriptor(a + half * 64 * kBlockK), b_tile = descriptor(b);
#pragma unroll
    for (int k16 = 0; k16 < kBlockK / 16; ++k16) {
      ptx::wgmma<Element, 0, 0>(sums[half], a_tile + k16 * kStepK16, b_tile + k16 * kStepK16, 1);
    }
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
}

// A warpgroup.
__device__ inline void consume(const Operands& x, Shared& shared, int row, int column, int thread) {
  for (int stage = 0; stage < kStages; ++stage) ptx::mbarrier_arrive(&shared.empty[stage]);
  PipelineState<kStages> state;
  Sums sums = {};
  for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
    ptx::mbarrier_arrive(&shared.full[state.stage]);
    ptx::mbarrier_wait(&shared.full[state.stage], state.parity);
    multiply(sums, shared.a[state.stage], shared.b[state.stage]);
    ptx::mbarrier_arrive(&shared.empty[state.stage]);
  }
#pragma unroll
  for (int half = 0; half < kBlockM / 64; ++half) {
    store_sums(sums[half], x.c + int64_t{row + half * 64} * x.n + column, x.n, thread);
  }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(const __grid_constant__ Operands x) {
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 16);
  auto& shared = aligned<Shared>(raw);
  const int warpgroup = warpgroup_index(), thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int row = static_cast<int>(blockIdx.y) * kBlockM;
  const int column = static_cast<int>(blockIdx.x) * kBlockN;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(&shared.full[stage], 1 + kConsumers * kWarpgroup);
      ptx::mbarrier_init(&shared.empty[stage], 1 + kConsumers * kWarpgroup);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warpgroup == 0) {
    if (thread == 0) produce(x, shared, row, column);
  } else {
    consume(x, shared, row, column, thread);
  }
}

inline Status run(const Product& product) {
  static SharedMemoryLimit limit;
  Operands operands;
  const Status made = make_operands(product, kBlockM, kBlockN, &operands);
  if (!made.ok()) return made;
  const Grid grid{.blocks = dim3(static_cast<unsigned>(product.n / kBlockN),
                                 static_cast<unsigned>(product.m / kBlockM)),
                  .threads = kThreads,
                  .shared_bytes = kSmemBytes<Shared>,
                  .stream = product.stream};
  return launch_large("ladder hopper: rung 3", limit, grid, gemm_kernel, operands);
}

}  // namespace xgemm::cuda::ladder::hopper::rung3
