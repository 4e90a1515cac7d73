// From a Config to the kernel compiled for it.
#pragma once

#include "cuda/gemm/sm80/instances.h"
#include "cuda/gemm/sm80/kernel.cuh"
#include "cuda/gemm/sm80/reduce.cuh"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::sm80 {

template <typename T, typename Tile, bool kAMn, bool kBMn, bool kGeneral>
Status launch_kernel(const Params& params, int ctas, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(SharedStorage<Tile>);
  const auto kernel = gemm_kernel<T, Tile, kAMn, kBMn, kGeneral>;
  if constexpr (kSmemBytes > 48 * 1024) {
    static SharedMemoryLimit limit;
    const cudaError_t error = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes);
    if (error != cudaSuccess) return {error, "shared memory of the sm_80 GEMM"};
  }
  const Grid grid{.blocks = dim3(ctas),
                  .threads = dim3(Tile::kThreads),
                  .shared_bytes = kSmemBytes,
                  .stream = stream};
  return launch_grid("the sm_80 GEMM", grid, kernel, params);
}

template <typename T, typename Tile, bool kGeneral>
Status launch_layout(const Params& params, int ctas, cudaStream_t stream) {
  const bool a_mn = params.a.mn_major, b_mn = params.b.mn_major;
  if (a_mn && b_mn) return launch_kernel<T, Tile, true, true, kGeneral>(params, ctas, stream);
  if (a_mn) return launch_kernel<T, Tile, true, false, kGeneral>(params, ctas, stream);
  if (b_mn) return launch_kernel<T, Tile, false, true, kGeneral>(params, ctas, stream);
  return launch_kernel<T, Tile, false, false, kGeneral>(params, ctas, stream);
}

template <typename T>
Status launch_tile(const Params& params, const Config& config, cudaStream_t stream) {
  const bool general = params.a.access != Access::kWhole16 || params.b.access != Access::kWhole16;
  if (config.block_n == 256) {
    return launch_layout<T, TileLarge, false>(params, config.ctas, stream);
  }
  if (config.block_n == 128) {
    return general ? launch_layout<T, TileGeneral, true>(params, config.ctas, stream)
                   : launch_layout<T, TileMedium, false>(params, config.ctas, stream);
  }
  return general ? launch_layout<T, TileSmall, true>(params, config.ctas, stream)
                 : launch_layout<T, TileSmall, false>(params, config.ctas, stream);
}

template <typename T>
Status launch_typed(const Params& params, const Config& config, cudaStream_t stream) {
  const Status status = launch_tile<T>(params, config, stream);
  if (!status.ok() || params.splits == 1) return status;
  return reduce<T>(params, stream);
}

}  // namespace xgemm::cuda::gemm::sm80
