// Products of float32 on Hopper's FP64 tensor cores, which are as fast as its FP32 cores but take
// hardly any issue slots: operands are converted in registers, products are exact, and their sums
// in float64. Small products in one of TF32 have the same tiles.
#pragma once

#include <type_traits>

#include "cuda/gemm/fp32/sm90/epilogue.cuh"
#include "cuda/gemm/fp32/sm90/loader.cuh"
#include "cuda/gemm/fp32/sm90/multiply_f64.cuh"
#include "cuda/gemm/fp32/sm90/multiply_tf32.cuh"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

template <typename Tile, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtasPerSm)
    gemm_kernel(const __grid_constant__ TmaParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Loader = std::conditional_t<Tile::kTma, TmaLoader<Tile, kAAlongK, kBAlongK>,
                                    CopyLoader<Tile, kAAlongK, kBAlongK>>;
  using Mine = std::conditional_t<Tile::kPrecision == Precision::kIeee,
                                  WarpTileF64<Tile, kAAlongK, kBAlongK>,
                                  WarpTileTf32<Tile, kAAlongK, kBAlongK>>;
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem =
      *reinterpret_cast<SharedStorage<Tile>*>(raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  const int thread = threadIdx.x;
  if (Tile::kTma && thread == 0) {
    ptx::prefetch_tensormap(&params.a.map), ptx::prefetch_tensormap(&params.b.map);
  }
  const WorkTile work_tile = WorkTile::at<Tile>(params.problem, static_cast<int>(blockIdx.x));
  const int k_tiles = work_tile.work.k_tiles(Tile::kStageDepth);
  const int depth_of_last =
      static_cast<int>(work_tile.work.k_end - work_tile.work.k) - (k_tiles - 1) * Tile::kStageDepth;
  const int pairs_of_last = ceil_div(depth_of_last, kPairOfSteps * Tile::kSlices);
  Loader loader(params, smem, work_tile.work, thread);
  loader.start();
  Mine mine(smem, thread / 32, thread % 32);
  loader.wait(0, 0, 0);
  mine.load(0, 0);
  mine.start();
  constexpr int kPairs = Tile::kPairs;
  constexpr uint32_t kStageBytes = sizeof(smem.stages[0]);
  // Not PipelineState: its parity of the next stage is one register more, and a 64x64 kernel, which
  // has 128, spills.
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    int next = stage;
    const int pairs = k_tile == k_tiles - 1 ? pairs_of_last : kPairs;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      if (pair > 0 && pair >= pairs) break;
      if (pair == kPairs - 1) {
        next = stage == Tile::kStages - 1 ? 0 : stage + 1;
        if (next == 0) parity ^= 1;
        loader.wait(k_tile + 1, next, parity);
      }
      mine.load(next * kStageBytes, (pair + 1) % kPairs);
      mine.multiply(pair, 0);
      if (pair == kPairs - 1) {
        loader.fetch(k_tile + Tile::kPrefetched, (stage + Tile::kPrefetched) % Tile::kStages);
      }
      mine.multiply(pair, 1);
    }
    stage = next;
  }
  ptx::griddep_launch_dependents();
  // Of the pipeline, once everybody has left it.
  __syncthreads();
  auto& staged = *reinterpret_cast<StagedSums<Tile>*>(smem.stages);
  static_assert(sizeof(staged) <= sizeof(smem.stages));
  staged.template put<kAAlongK, kBAlongK>(mine);
  __syncthreads();
  store_sums<Tile>(params.problem, work_tile, staged, thread / 32, mine.lane);
#endif
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
