// Ladder hopper, rung 1: TMA and wgmma.
//
// Source:    Pranjal Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", kernel 2.
// Changed:   starts over: a block of 128 threads makes 64 x 64 of C. TMA copies tiles of 64 x 64,
//            wgmma m64n64k16 multiplies them where they lie in shared memory.
// Published: 317 TFLOP/s on an H100.
//
// TMA copies a box of a matrix by one instruction of one thread. The box's rows are 128 bytes; the
// 128-byte swizzle XORs the row's number (0 to 7) into that of its 16 bytes, so that 8 rows of the
// same column lie in 8 different groups of banks. An mbarrier counts the bytes that have landed:
// thread 0 announces them, everybody arrives, and everybody waits for the phase to end.
//
// wgmma is an instruction of four warps. It reads A and B by descriptors: address, distance from 8
// rows to the next 8, swizzle. Its 64 x 64 sums are spread over 128 threads, 32 each. No fragment
// passes through registers, and no thread computes an address of an element.
//
// What is wrong with it. A tile is loaded, multiplied, and the next one is loaded: tensor cores
// wait for memory, and memory for tensor cores. And 64 x 64 is small: 16 KB are loaded for 4096 x
// 64 multiply-adds, which is more than L2 can give.
#pragma once

#include "cuda/ladder/hopper/sm90/common.cuh"

namespace xgemm::cuda::ladder::hopper::rung1 {

inline constexpr int kBlockM = 64, kBlockN = 64, kBlockK = 64;
inline constexpr int kThreads = kWarpgroup;

struct Shared {
  alignas(1024) Element a[kBlockM * kBlockK];
  alignas(1024) Element b[kBlockN * kBlockK];
  uint64_t full;  // the tiles have landed
};

inline constexpr int kTileBytes = (kBlockM + kBlockN) * kBlockK * sizeof(Element);

using Sums = float[kBlockN / 2];

// sums += A B^T, 16 k at a time.
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
  store_sums(sums, x.c + int64_t{row} * x.n + column, x.n, thread);
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
  return launch_large("ladder hopper: rung 1", limit, grid, gemm_kernel, operands);
}

}  // namespace xgemm::cuda::ladder::hopper::rung1
