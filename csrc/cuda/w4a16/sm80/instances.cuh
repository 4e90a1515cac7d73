// From a tile's size to the kernel compiled for it.
#pragma once

#include "common/math.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/w4a16/sm80/instances.h"
#include "cuda/w4a16/sm80/kernel.cuh"
#include "cuda/w4a16/sm80/reduce.cuh"

namespace xgemm::cuda::w4a16::sm80 {

template <typename T, typename Tile>
Status launch_kernel(Params params, cudaStream_t stream) {
  const auto kernel = w4a16_kernel<T, Tile>;
  static SharedMemoryLimit limit;
  const cudaError_t error = limit.raise_to_most(reinterpret_cast<const void*>(kernel));
  if (error != cudaSuccess) return {error, "shared memory of the sm_80 W4A16 kernel"};
  params.tiles_m = static_cast<int>(ceil_div<int64_t>(params.m, Tile::kBlockM));
  params.tiles_n = static_cast<int>(ceil_div<int64_t>(params.n, Tile::kBlockN));
  params.units_per_split = round_up(ceil_div(params.units, params.splits), Tile::kWarpsK);
  const int bytes = Tile::shared_bytes(params.unit_bytes, params.stages);  // formats differ
  const Grid grid{.blocks = dim3(params.tiles_m * params.tiles_n * params.splits),
                  .threads = dim3(Tile::kThreads),
                  .shared_bytes = static_cast<size_t>(bytes),
                  .stream = stream};
  return launch_grid("the sm_80 W4A16 kernel", grid, kernel, params);
}

template <typename T>
Status launch_tile(const Params& params, int block_m, int block_n, cudaStream_t stream) {
  const bool wide = block_n == 128;
  switch (block_m) {
    case 8:
      return wide ? launch_kernel<T, Tile8Wide>(params, stream)
                  : launch_kernel<T, Tile8>(params, stream);
    case 16:
      return wide ? launch_kernel<T, Tile16Wide>(params, stream)
                  : launch_kernel<T, Tile16>(params, stream);
    case 32:
      return wide ? launch_kernel<T, Tile32Wide>(params, stream)
                  : launch_kernel<T, Tile32>(params, stream);
    default:
      return block_n == Tile64Wide::kBlockN ? launch_kernel<T, Tile64Wide>(params, stream)
                                            : launch_kernel<T, Tile64>(params, stream);
  }
}

template <typename T>
Status launch_typed(const Params& params, int block_m, int block_n, cudaStream_t stream) {
  const Status status = launch_tile<T>(params, block_m, block_n, stream);
  if (!status.ok() || params.splits == 1) return status;
  return reduce<T>(params, stream);
}

}  // namespace xgemm::cuda::w4a16::sm80
