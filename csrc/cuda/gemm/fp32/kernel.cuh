// Matrix products on the FP32 cores: tiles of both operands by k in a pipeline of shared-memory
// stages, fragments double-buffered in registers, outer products of quads.
//
// The FP32 cores take an instruction of each scheduler every cycle, so whatever is not an FMA costs
// its slot: 6 shared-memory reads for 128 of them here.
#pragma once

#include "cuda/gemm/fp32/loader.cuh"
#include "cuda/gemm/fp32/thread_tile.cuh"
#include "cuda/ptx/mbarrier.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::fp32 {

template <typename Tile>
struct SharedStorage {
  struct Stage {
    float a[kBlockK * Tile::kStrideA];
    float b[kBlockK * Tile::kStrideB];
  };
  alignas(16) Stage stages[Tile::kStages];
};

// kChunks: both operands lie along their rows, in aligned quads.
template <typename Tile, bool kChunks>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtasPerSm)
    gemm_kernel(const __grid_constant__ Params params) {
  using Storage = SharedStorage<Tile>;
  constexpr int kStages = Tile::kStages;
  XGEMM_DYNAMIC_SHARED(char, raw_smem, 16);
  Storage& smem = *reinterpret_cast<Storage*>(raw_smem);
  const Work work = Work::at<Tile>(params, params.first_work + blockIdx.x);
  const int thread = threadIdx.x;
  Loader<Tile::kBlockM, Tile::kThreads, Tile::kStrideA, kChunks> a_loader(
      params.a, batch_offset(params, work.batch, &BatchDim::a),
      {work.m, params.m, work.k, work.k_end}, thread);
  Loader<Tile::kBlockN, Tile::kThreads, Tile::kStrideB, kChunks> b_loader(
      params.b, batch_offset(params, work.batch, &BatchDim::b),
      {work.n, params.n, work.k, work.k_end}, thread);
  ThreadTile<Tile> mine(thread / 32, thread % 32);
  mine.clear();
  const int k_tiles = work.k_tiles();

  // Tile t goes to stage t % kStages. Tiles past the last one are fetched too, as zeros.
  const uint32_t smem_a = ptx::smem_address(smem.stages[0].a);
  const uint32_t smem_b = ptx::smem_address(smem.stages[0].b);
  const uint32_t mine_a = smem_a + mine.row * 4, mine_b = smem_b + mine.column * 4;
  constexpr int kStageBytes = sizeof(typename Storage::Stage);
  int read = 0, write = 0;  // offsets of stages
  const auto next = [](int stage) {
    return stage == (kStages - 1) * kStageBytes ? 0 : stage + kStageBytes;
  };
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    a_loader.fetch(smem_a + write);
    b_loader.fetch(smem_b + write);
    ptx::cp_async_commit_group();
    write = next(write);
  }
  ptx::cp_async_wait_group<kStages - 2>();
  __syncthreads();
  mine.load(0, mine_a, mine_b, 0);

#pragma unroll 1
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    a_loader.fetch(smem_a + write);
    b_loader.fetch(smem_b + write);
    ptx::cp_async_commit_group();
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      if (k == kBlockK - 1) {
        write = next(write), read = next(read);
        ptx::cp_async_wait_group<kStages - 2>();
        __syncthreads();
      }
      mine.load((k + 1) % 2, mine_a + read, mine_b + read, (k + 1) % kBlockK);
      mine.multiply(k % 2);
    }
  }
  ptx::cp_async_wait_group<0>();
  store_tile(params, work, mine);
}

}  // namespace xgemm::cuda::gemm::fp32
