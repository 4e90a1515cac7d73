// Ladder sgemm, rung 8: cp.async.
//
// Source:    ours: what the product's fp32 kernel for Ampere does, with everything else left out.
// Changed:   tiles of 16 k are copied by cp.async into a pipeline of three, without passing through
//            registers; addresses are kept and advanced, not computed; sums are stored as they are.
// Published: nothing.
//
// cp.async (Ampere and later) copies from global to shared memory while the thread goes on. The 16
// registers that carried the next tile are free, and not one tile but two are on their way. Copies
// are counted in groups, one a tile; the wait lets the latest be unfinished.
//
// B is copied 16 bytes at a time. A must be transposed, and a copy that does so moves one element:
// 4 bytes. A warp copies 4 rows of 8 k at a time, which are 4 sectors of 32 bytes; rows of A's tile
// are 4 words longer than its data, so that these 32 elements lie in 32 banks.
//
// What is not an FMA takes an FMA's place in a scheduler. A thread therefore keeps two pointers and
// adds to them; `opaque` keeps the compiler from computing p + i * step anew for each copy. Copies
// past the last tile read that one again, so that the loop has no branch. And the sums go to C by a
// register of their own: a store of 16 bytes wants four neighbouring registers, and sums that lie
// so all along are in the wrong register banks for FMAs.
#pragma once

#include "cuda/ladder/sgemm/copy4.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/ld_st.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/opaque.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::ladder::sgemm::rung8 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 16;
inline constexpr int kWarpM = 64, kWarpN = 64, kThreads = 128;  // 2 x 2 warps
inline constexpr int kThreadM = 16, kThreadN = 8;  // of C, a thread: 4 x 2 blocks of 4 x 4
inline constexpr int kStepM = 16, kStepN = 32;     // from one of them to the next
inline constexpr int kStages = 3;

struct Tiles {
  alignas(16) float a[kBlockK][kBlockM + 4];  // transposed: 4 rows of a thread lie side by side
  alignas(16) float b[kBlockK][kBlockN];
};

inline constexpr int kSmemBytes = kStages * sizeof(Tiles);

// A thread's copies: 16 single elements of A, and 4 times four of B.
struct Copier {
  const float *a, *b;
  int64_t step_a, step_b;  // from one copy's rows to the next's
  uint32_t to_a, to_b;     // in the first of the pipeline's tiles
  int left;                // tiles that are still to be copied

  __device__ Copier(const Matrices& x, const Tiles& tiles, int tid)
      : a(x.a + int64_t{static_cast<int>(blockIdx.y) * kBlockM + tid / 8} * x.k + tid % 8),
        b(x.b + int64_t{tid / 32} * x.n + static_cast<int>(blockIdx.x) * kBlockN + tid % 32 * 4),
        step_a(int64_t{kThreads / 8} * x.k),
        step_b(int64_t{4} * x.n),
        to_a(ptx::smem_address(&tiles.a[tid % 8][tid / 8])),
        to_b(ptx::smem_address(&tiles.b[tid / 32][tid % 32 * 4])),
        left(x.k / kBlockK) {}

  // One group: a tile, to `offset` bytes behind the first one.
  __device__ void copy(int offset) {
    const float *from_a = a, *from_b = b;
#pragma unroll
    for (int row = 0; row < kBlockM; row += kThreads / 8) {
#pragma unroll
      for (int k = 0; k < kBlockK; k += 8) {
        constexpr int kRow = sizeof(Tiles::a[0]);
        ptx::cp_async<4>(to_a + offset + k * kRow + row * 4, from_a + k, 4);
      }
      from_a = ptx::opaque(from_a + step_a);
    }
#pragma unroll
    for (int k = 0; k < kBlockK; k += 4) {
      ptx::cp_async<16>(to_b + offset + k * static_cast<int>(sizeof(Tiles::b[0])), from_b, 16);
      from_b = ptx::opaque(from_b + step_b);
    }
    ptx::cp_async_commit_group();
    const bool more = --left > 0;
    a += more ? kBlockK : 0;
    b += more ? 4 * step_b : 0;
  }
};

// The elements that a thread multiplies in one step of k; a, b: shared-memory addresses.
struct Fragments {
  float a[kThreadM], b[kThreadN];

  __device__ static void load4(float* to, uint32_t from) {
    const float4 x = ptx::ld_shared(from);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
  __device__ void load(uint32_t from_a, uint32_t from_b, int k) {
#pragma unroll
    for (int i = 0; i < kThreadM; i += 4) {
      load4(&a[i], from_a + k * static_cast<int>(sizeof(Tiles::a[0])) + i * kStepM);
    }
#pragma unroll
    for (int j = 0; j < kThreadN; j += 4) {
      load4(&b[j], from_b + k * static_cast<int>(sizeof(Tiles::b[0])) + j * kStepN);
    }
  }
};

using Sums = float[kThreadM][kThreadN];

// To and fro: each FMA shares an operand with the one before it.
__device__ inline void multiply(Sums& sums, const Fragments& x) {
#pragma unroll
  for (int i = 0; i < kThreadM; ++i) {
#pragma unroll
    for (int step = 0; step < kThreadN; ++step) {
      const int j = i % 2 == 0 ? step : kThreadN - 1 - step;
      sums[i][j] = fmaf(x.a[i], x.b[j], sums[i][j]);
    }
  }
}

__device__ inline void store(const Matrices& x, const Sums& sums, int row, int column) {
  float* c = x.c + int64_t{static_cast<int>(blockIdx.y) * kBlockM + row} * x.n;
  c += static_cast<int>(blockIdx.x) * kBlockN + column;
#pragma unroll
  for (int i = 0; i < kThreadM; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadN; j += 4) {
      alignas(16) const float four[4] = {ptx::opaque(sums[i][j]), ptx::opaque(sums[i][j + 1]),
                                         ptx::opaque(sums[i][j + 2]), ptx::opaque(sums[i][j + 3])};
      copy4(c + int64_t{i / 4 * kStepM + i % 4} * x.n + j / 4 * kStepN, four);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2) gemm_kernel(Matrices x) {
  XGEMM_DYNAMIC_SHARED(Tiles, tiles, 16);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int row = warp / 2 * kWarpM + (lane / 16 * 2 + lane % 2) * 4;
  const int column = warp % 2 * kWarpN + lane / 2 % 8 * 4;
  const uint32_t a = ptx::smem_address(&tiles[0].a[0][row]);
  const uint32_t b = ptx::smem_address(&tiles[0].b[0][column]);
  constexpr int kLast = (kStages - 1) * sizeof(Tiles);
  const auto next = [](int at) { return at == kLast ? 0 : at + static_cast<int>(sizeof(Tiles)); };
  Copier copier(x, tiles[0], tid);
  Sums sums{};
  Fragments fragments[2];
  copier.copy(0);
  copier.copy(sizeof(Tiles));
  ptx::cp_async_wait_group<kStages - 2>();
  __syncthreads();
  fragments[0].load(a, b, 0);
  int read = 0, write = kLast;  // bytes from the first tile of the pipeline
#pragma unroll 1
  for (int k0 = 0; k0 < x.k; k0 += kBlockK) {
    copier.copy(write);
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      if (k == kBlockK - 1) {
        write = next(write), read = next(read);
        ptx::cp_async_wait_group<kStages - 2>();
        __syncthreads();  // the next tile is there, and this one's place is free
      }
      fragments[(k + 1) % 2].load(a + read, b + read, (k + 1) % kBlockK);
      multiply(sums, fragments[k % 2]);
    }
  }
  ptx::cp_async_wait_group<0>();
  store(x, sums, row, column);
}

inline Status run(const Product& product) {
  static SharedMemoryLimit limit;
  const auto kernel = gemm_kernel;
  const cudaError_t raised = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes);
  if (raised != cudaSuccess) return {raised, "ladder sgemm: raising the limit of shared memory"};
  const dim3 blocks(static_cast<unsigned>(product.n / kBlockN),
                    static_cast<unsigned>(product.m / kBlockM));
  const Grid grid{
      .blocks = blocks, .threads = kThreads, .shared_bytes = kSmemBytes, .stream = product.stream};
  return launch_grid("ladder sgemm: rung 8", grid, kernel, matrices_of(product));
}

}  // namespace xgemm::cuda::ladder::sgemm::rung8
