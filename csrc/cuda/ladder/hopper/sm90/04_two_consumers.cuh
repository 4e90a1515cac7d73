// Ladder hopper, rung 4: 128 x 256 and two consumers.
//
// Source:    Pranjal Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", kernel 5.
// Changed:   a block makes 128 x 256 of C; two warpgroups multiply, each 64 rows of A, by wgmma
//            m64n256k16. The pipeline has four places, which are all that shared memory holds.
// Published: 610 TFLOP/s on an H100.
//
// 48 KB are loaded for 128 x 256 x 64 multiply-adds: three quarters of rung 3's bytes for each. An
// m64n256k16 reads 2 + 8 KB of shared memory, 80 cycles of it, for 128 cycles of the tensor cores.
//
// One warpgroup could not hold the sums: 256 a thread, where a thread has 255 registers at most.
// Two have 128 each, and when one waits at a barrier the other multiplies.
//
// What is wrong with it. A block stores its tile at the end, and nothing is loaded or multiplied
// meanwhile: with 200 KB of shared memory there is room for one block on an SM.
#pragma once

#include "cuda/ladder/hopper/sm90/common.cuh"

namespace xgemm::cuda::ladder::hopper::rung4 {

inline constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 64;
inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kStages = 4;

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

// A warpgroup: its 64 rows of the tile.
__device__ inline void consume(const Operands& x, Shared& shared, int row, int column, int consumer,
                               int thread) {
  for (int stage = 0; stage < kStages; ++stage) ptx::mbarrier_arrive(&shared.empty[stage]);
  PipelineState<kStages> state;
  Sums sums = {};
  for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
    ptx::mbarrier_arrive(&shared.full[state.stage]);
    ptx::mbarrier_wait(&shared.full[state.stage], state.parity);
    multiply(sums, shared.a[state.stage] + consumer * 64 * kBlockK, shared.b[state.stage]);
    ptx::mbarrier_arrive(&shared.empty[state.stage]);
  }
  store_sums(sums, x.c + int64_t{row + consumer * 64} * x.n + column, x.n, thread);
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
    consume(x, shared, row, column, warpgroup - 1, thread);
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
  return launch_large("ladder hopper: rung 4", limit, grid, gemm_kernel, operands);
}

}  // namespace xgemm::cuda::ladder::hopper::rung4
