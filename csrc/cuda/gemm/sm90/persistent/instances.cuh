// From a Config to the kernel compiled for it.
#pragma once

#include "cuda/gemm/sm90/persistent/kernel.cuh"
#include "cuda/gemm/sm90/persistent/tiles.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::sm90::persistent {

template <typename T, typename Tile, bool kAMn, bool kBMn>
Status launch_kernel(const Params& params, const Config& config, cudaStream_t stream) {
  const auto kernel = gemm_kernel<T, Tile, kAMn, kBMn>;
  constexpr int kSmem = kSmemBytes<T, Tile>;
  static_assert(kSmem <= 227 * 1024, "a CTA has 227 KB of shared memory");
  static SharedMemoryLimit limit;
  const cudaError_t set = limit.raise(reinterpret_cast<const void*>(kernel), kSmem);
  if (set != cudaSuccess) return {set, "shared memory of the sm_90a GEMM"};
  const Grid grid{.blocks = dim3(config.ctas),
                  .threads = dim3(kThreads),
                  .shared_bytes = kSmem,
                  .stream = stream,
                  .cluster = dim3(config.cluster),
                  .overlaps_previous = true};
  return launch_grid("the sm_90a GEMM", grid, kernel, params);
}

template <typename T, int kBlockN, int kStages>
Status launch_layout(const Params& params, const Config& config, bool a_mn, bool b_mn,
                     cudaStream_t stream) {
  using Tile = TileConfig<kBlockN, kStages>;
  if constexpr (kBlockN % kSwizzleElements == 0) {  // an MN-major B comes in whole boxes
    if (a_mn && b_mn) return launch_kernel<T, Tile, true, true>(params, config, stream);
    if (b_mn) return launch_kernel<T, Tile, false, true>(params, config, stream);
  }
  if (b_mn) return {cudaErrorInvalidValue, "the sm_90a GEMM: no such tile for an MN-major B"};
  if (a_mn) return launch_kernel<T, Tile, true, false>(params, config, stream);
  return launch_kernel<T, Tile, false, false>(params, config, stream);
}

template <typename T>
Status launch_tile(const Params& params, const Config& config, bool a_mn, bool b_mn,
                   cudaStream_t stream) {
#define XGEMM_SM90_TILE(BLOCK_N, STAGES) \
  if (config.block_n == BLOCK_N)         \
    return launch_layout<T, BLOCK_N, STAGES>(params, config, a_mn, b_mn, stream);
  XGEMM_SM90_TILES(XGEMM_SM90_TILE)
#undef XGEMM_SM90_TILE
  return {cudaErrorInvalidValue, "the sm_90a GEMM: no such tile"};
}

}  // namespace xgemm::cuda::gemm::sm90::persistent
