// Products on Hopper's FP32 cores: TMA brings both operands' tiles, which takes one thread instead
// of a tenth of all issue slots.
#pragma once

#include "cuda/gemm/fp32/sm90/epilogue.cuh"
#include "cuda/gemm/fp32/sm90/operand.cuh"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

template <typename Tile, bool kTransposes>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtasPerSm)
    gemm_kernel(const __grid_constant__ TmaParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // Of a tile, this many k are unrolled: with more of them the code of a tile does not stay in the
  // instruction cache, with fewer a warp branches more often, which takes it ten cycles.
  constexpr int kUnroll = 16, kDepth = Tile::kDepthOfWarp;
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem =
      *reinterpret_cast<SharedStorage<Tile>*>(raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  const int thread = threadIdx.x, warp = thread / 32;
  if (thread == 0) ptx::prefetch_tensormap(&params.a.map), ptx::prefetch_tensormap(&params.b.map);
  const Unit unit = Unit::at<Tile>(params.problem, static_cast<int>(blockIdx.x));
  const Loader<Tile, kTransposes> loader(params, smem, unit.work);
  if (thread == 0) loader.start();
  __syncthreads();

  constexpr int kWarpsMN = Tile::kThreads / 32 / Tile::kWarpsK;
  const int warp_k = warp / kWarpsMN, k_tiles = loader.k_tiles();
  ThreadTile<Tile> mine(warp % kWarpsMN, thread % 32);
  mine.clear();
  uint32_t a =
      ptx::smem_address(smem.a.stage[0]) + (warp_k * kDepth * Tile::kBlockM + mine.row) * 4;
  uint32_t b =
      ptx::smem_address(smem.b.stage[0]) + (warp_k * kDepth * Tile::kBlockN + mine.column) * 4;
  int stage = 0;
  uint32_t parity = 0;
  loader.finish(0, 0, 0);
  if (kTransposes) __syncthreads();
  mine.load_early(0, a, b, 0);
#pragma unroll 1
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    if (thread == 0) loader.fetch_ahead(k_tile);
#pragma unroll 1
    for (int left = kDepth - kUnroll; left >= 0; left -= kUnroll) {
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (k == kUnroll - 1) {
          if (left > 0) {
            a += kUnroll * Tile::kStrideA * 4, b += kUnroll * Tile::kStrideB * 4;
          } else {
            a -= (kDepth - kUnroll) * Tile::kStrideA * 4;
            b -= (kDepth - kUnroll) * Tile::kStrideB * 4;
            const bool wraps = stage == 2;
            loader.advance(k_tile, wraps, &a, &b);
            stage = wraps ? 0 : stage + 1;
            if (wraps) parity ^= 1;
            if (k_tile + 1 < k_tiles) loader.finish(k_tile + 1, stage, parity);
            __syncthreads();
          }
        }
        mine.load_early((k + 1) % 2, a, b, (k + 1) % kUnroll);
        mine.multiply(k % 2);
      }
    }
  }
  if (params.problem.m == 0) mine.keep_off_columns_banks(ptx::smem_address(raw));  // never
  ptx::griddep_launch_dependents();
  __syncthreads();  // the last step has read ahead, too, from where the sums go
  store_sums<Tile>(params, smem, unit, mine, warp_k);
#endif
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
