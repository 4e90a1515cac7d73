// From a variant to the kernel compiled for it.
#pragma once

#include <iterator>

#include "common/math.h"
#include "cuda/gemm/sm90/small/instances.h"
#include "cuda/gemm/sm90/small/kernel.cuh"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::sm90::small {

template <typename T, typename Tile, bool kAMn, bool kBMn>
Status launch_kernel(const Params& params, cudaStream_t stream) {
  const auto kernel = small_kernel<T, Tile, kAMn, kBMn>;
  using Storage = SharedStorage<T, Tile>;
  constexpr int kMostBytes = Storage::bytes_of(Tile::kStages);
  static_assert(kMostBytes <= 227 * 1024, "a CTA has 227 KB of shared memory");
  static SharedMemoryLimit limit;
  const cudaError_t set = limit.raise(reinterpret_cast<const void*>(kernel), kMostBytes);
  if (set != cudaSuccess) return {set, "shared memory of the sm_90a GEMM for small products"};
  const int bytes = Storage::bytes_of(ceil_div(params.k, kChunkK));
  const auto columns = static_cast<unsigned>(ceil_div(params.n, Tile::kBlockN));
  const auto rows = static_cast<unsigned>(ceil_div(params.m, Tile::kBlockM));
  const Grid grid{.blocks = dim3(columns, rows, params.batch),
                  .threads = dim3(kThreads),
                  .shared_bytes = static_cast<size_t>(bytes),
                  .stream = stream,
                  .overlaps_previous = true};
  return launch_grid("the sm_90a GEMM for small products", grid, kernel, params);
}

template <typename T, typename Tile>
Status launch_layout(const Params& params, const Variant& variant, cudaStream_t stream) {
  if constexpr (Tile::kBlockN % kSwizzleElements == 0) {
    if (variant.b_mn) {
      return variant.a_mn ? launch_kernel<T, Tile, true, true>(params, stream)
                          : launch_kernel<T, Tile, false, true>(params, stream);
    }
  }
  if (variant.b_mn) return {cudaErrorInvalidValue, "a layout of the GEMM for small products"};
  return variant.a_mn ? launch_kernel<T, Tile, true, false>(params, stream)
                      : launch_kernel<T, Tile, false, false>(params, stream);
}

template <typename T, int kIndex = 0>
Status launch_tile(const Params& params, const Variant& variant, cudaStream_t stream) {
  if constexpr (kIndex == std::size(kShapes)) {
    return {cudaErrorInvalidValue, "a tile of the GEMM for small products"};
  } else {
    constexpr Shape kShape = kShapes[kIndex];
    if (variant.block_m != kShape.block_m || variant.block_n != kShape.block_n) {
      return launch_tile<T, kIndex + 1>(params, variant, stream);
    }
    using Tile = TileConfig<kShape.block_m, kShape.block_n, kShape.stages>;
    return launch_layout<T, Tile>(params, variant, stream);
  }
}

}  // namespace xgemm::cuda::gemm::sm90::small
