// From a variant to the kernel compiled for it.
#pragma once

#include <array>

#include "cuda/gemm/sm90/skinny/instances.h"
#include "cuda/gemm/sm90/skinny/kernel.cuh"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::sm90::skinny {

template <typename T, typename Tile, bool kWideMn, bool kNarrowMn>
Status launch_kernel(const Params& params, int ctas, cudaStream_t stream) {
  const auto kernel = skinny_kernel<T, Tile, kWideMn, kNarrowMn>;
  const int smem = params.stages * stage_bytes(params.rows, Tile::kColumns) +
                   beside_pipeline_bytes(params.rows, Tile::kColumns, params.splits);
  static SharedMemoryLimit limit;
  const cudaError_t set = limit.raise(reinterpret_cast<const void*>(kernel), kMaxSmemBytes);
  if (set != cudaSuccess) return {set, "shared memory of the skinny sm_90a GEMM"};
  const Grid grid{.blocks = dim3(ctas),
                  .threads = dim3(Tile::kThreads),
                  .shared_bytes = static_cast<size_t>(smem),
                  .stream = stream,
                  .cluster = dim3(params.splits),
                  .overlaps_previous = true};
  return launch_grid("the skinny sm_90a GEMM", grid, kernel, params);
}

template <typename T, typename Tile>
Status launch_layout(const Params& params, const Variant& variant, int ctas, cudaStream_t stream) {
  if constexpr (Tile::kColumns % kSwizzleElements == 0) {
    if (variant.narrow_mn) {
      return variant.wide_mn ? launch_kernel<T, Tile, true, true>(params, ctas, stream)
                             : launch_kernel<T, Tile, false, true>(params, ctas, stream);
    }
  }
  if (variant.narrow_mn) return {cudaErrorInvalidValue, "a layout of the skinny GEMM"};
  return variant.wide_mn ? launch_kernel<T, Tile, true, false>(params, ctas, stream)
                         : launch_kernel<T, Tile, false, false>(params, ctas, stream);
}

template <typename T, int kIndex = 0>
Status launch_tile(const Params& params, const Variant& variant, int ctas, cudaStream_t stream) {
  if constexpr (kIndex == std::size(kColumns)) {
    return {cudaErrorInvalidValue, "a tile of the skinny GEMM"};
  } else {
    constexpr int kWidth = kColumns[kIndex];
    if (variant.columns != kWidth) {
      return launch_tile<T, kIndex + 1>(params, variant, ctas, stream);
    }
    return warpgroups_of(params.rows) == 1
               ? launch_layout<T, TileConfig<1, kWidth>>(params, variant, ctas, stream)
               : launch_layout<T, TileConfig<2, kWidth>>(params, variant, ctas, stream);
  }
}

}  // namespace xgemm::cuda::gemm::sm90::skinny
