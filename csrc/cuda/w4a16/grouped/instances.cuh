// From a tile's size to the kernel compiled for it.
#pragma once

#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/w4a16/grouped/instances.h"
#include "cuda/w4a16/grouped/kernel.cuh"

namespace xgemm::cuda::w4a16::grouped {

template <typename T, typename Tile, bool kOverlap, bool kFp4>
Status launch_kernel(const Params& params, int64_t tiles, cudaStream_t stream) {
  const auto kernel = grouped_kernel<T, Tile, kOverlap, kFp4>;
  static SharedMemoryLimit limit;
  const cudaError_t error = limit.raise_to_most(reinterpret_cast<const void*>(kernel));
  if (error != cudaSuccess) return {error, "shared memory of the kernel for experts"};
  const int bytes = Tile::shared_bytes(params.format.unit_bytes, params.stages);
  const Grid grid{.blocks = dim3(static_cast<unsigned>(tiles * params.column_blocks)),
                  .threads = dim3(kThreads),
                  .shared_bytes = static_cast<size_t>(bytes),
                  .stream = stream,
                  .overlaps_previous = kOverlap};
  return launch_grid("the W4A16 kernel for experts", grid, kernel, params);
}

template <typename T, bool kOverlap, bool kFp4 = false>
Status launch_typed(const Params& params, const Instance& instance, cudaStream_t stream) {
  switch (instance.block_m) {
    case 8:
      return launch_kernel<T, Tile8, kOverlap, kFp4>(params, instance.tiles, stream);
    case 16:
      return launch_kernel<T, Tile16, kOverlap, kFp4>(params, instance.tiles, stream);
    default:
      return launch_kernel<T, Tile32, kOverlap, kFp4>(params, instance.tiles, stream);
  }
}

}  // namespace xgemm::cuda::w4a16::grouped
