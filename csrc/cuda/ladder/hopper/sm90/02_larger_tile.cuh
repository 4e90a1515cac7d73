// Ladder hopper, rung 2: a tile of 128 x 128.
//
// Source:    Pranjal Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", kernel 3.
// Changed:   a block makes 128 x 128 of C, by two wgmma m64n128k16 where rung 1 had one m64n64k16.
// Published: 423 TFLOP/s on an H100.
//
// 32 KB are loaded for 128 x 128 x 64 multiply-adds: half as many bytes for each as on rung 1. And
// wgmma reads its operands from shared memory for each instruction: m64n64k16 reads 64 + 64 rows
// for 64 x 64 sums, m64n128k16 64 + 128 rows for 64 x 128. Shared memory gives an SM 128 bytes a
// cycle; the 4 KB of an m64n64k16 take 32 cycles of it, as long as the tensor cores need for the
// products, the 6 KB of an m64n128k16 48 of 64 cycles.
//
// What is wrong with it. Loads and products still take turns; a second block on the SM hides some
// of that, and as the tile is larger there are fewer blocks.
#pragma once

#include "cuda/ladder/hopper/sm90/common.cuh"

namespace xgemm::cuda::ladder::hopper::rung2 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 64;
inline constexpr int kThreads = kWarpgroup;

struct Shared {
  alignas(1024) Element a[kBlockM * kBlockK];
  alignas(1024) Element b[kBlockN * kBlockK];
  uint64_t full;  // the tiles have landed
};

inline constexpr int kTileBytes = (kBlockM + kBlockN) * kBlockK * sizeof(Element);

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

__global__ void __launch_bounds__(kThreads) gemm_kernel(const __grid_constant__ Operands x) {
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 16);
  auto& shared = aligned<Shared>(raw);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y) * kBlockM;
  const int column = static_cast<int>(blockIdx.x) * kBlockN;
  if (thread == 0) {
    ptx::mbarrier_init(&shared.full, kThreads);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  Sums sums = {};
  uint32_t parity = 0;
  for (int k = 0; k < x.k; k += kBlockK, parity ^= 1) {
    if (thread == 0) {
      ptx::mbarrier_arrive_expect_tx(&shared.full, kTileBytes);
      ptx::tma_load_2d(shared.a, &x.a, &shared.full, k, row);
      ptx::tma_load_2d(shared.b, &x.b, &shared.full, k, column);
    } else {
      ptx::mbarrier_arrive(&shared.full);
    }
    ptx::mbarrier_wait(&shared.full, parity);
    multiply(sums, shared.a, shared.b);
    __syncthreads();  // the tiles have been read
  }
#pragma unroll
  for (int half = 0; half < kBlockM / 64; ++half) {
    store_sums(sums[half], x.c + int64_t{row + half * 64} * x.n + column, x.n, thread);
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
  return launch_large("ladder hopper: rung 2", limit, grid, gemm_kernel, operands);
}

}  // namespace xgemm::cuda::ladder::hopper::rung2
