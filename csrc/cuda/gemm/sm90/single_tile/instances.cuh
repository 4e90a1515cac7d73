// From a variant to the kernel compiled for it.
#pragma once

#include <array>

#include "common/math.h"
#include "cuda/gemm/sm90/single_tile/instances.h"
#include "cuda/gemm/sm90/single_tile/kernel.cuh"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

template <typename T, typename Tile, bool kAMn, bool kBMn>
Status launch_kernel(const Params& params, cudaStream_t stream) {
  const auto kernel = single_tile_kernel<T, Tile, kAMn, kBMn>;
  using Storage = SharedStorage<T, Tile>;
  constexpr int kMaxBytes = Storage::bytes_of(Tile::kStages);
  static_assert(kMaxBytes <= 227 * 1024, "a CTA has 227 KB of shared memory");
  static SharedMemoryLimit limit;
  const cudaError_t set = limit.raise(reinterpret_cast<const void*>(kernel), kMaxBytes);
  if (set != cudaSuccess) return {set, "shared memory of the sm_90a GEMM for small products"};
  const int bytes = Storage::bytes_of(ceil_div(params.k, kChunkK));
  const Clusters& cluster = params.cluster;
  const int columns = round_up(ceil_div(params.n, params.tile_n), cluster.along_n);
  const int rows = round_up(ceil_div(params.m, params.tile_m), cluster.along_m);
  const dim3 blocks(columns, rows, params.batch * params.parts);
  const dim3 clusters(cluster.along_n, cluster.along_m);
  const auto in_order = [&](const dim3& x) { return params.rows_first ? dim3(x.y, x.x, x.z) : x; };
  const auto in_groups = [&](const dim3& x) {
    const Raster& raster = params.raster;
    if (raster.group == 0) return x;
    return dim3(raster.group, x.y, raster.groups());
  };
  const Grid grid{.blocks = in_groups(in_order(blocks)),
                  .threads = dim3(Tile::kLaunched),
                  .shared_bytes = static_cast<size_t>(bytes),
                  .stream = stream,
                  .cluster = in_order(clusters),
                  .overlaps_previous = true};
  return launch_grid("the sm_90a GEMM for small products", grid, kernel, params);
}

template <typename T, int kIndex>
Status launch_layout(const Params& params, const Variant& variant, cudaStream_t stream) {
  constexpr Shape kShape = kShapes[kIndex];
  using Tile = TileConfig<kShape.block_m, kShape.block_n, kShape.stages, false>;
  if constexpr (kShape.compiled_for(false, true)) {
    if (variant.b_mn) {
      constexpr int kSharers = sharers_of(kShape.block_m);
      constexpr int kStageBytes = (kShape.block_m + round_up(kShape.block_n, 64)) * 128;
      constexpr int kMax = 224 * 1024 / kStageBytes / kSharers * kSharers;
      constexpr int kStages = kShape.stages < kMax ? kShape.stages : kMax;
      using Boxes = TileConfig<kShape.block_m, kShape.block_n, kStages, true>;
      return variant.a_mn ? launch_kernel<T, Boxes, true, true>(params, stream)
                          : launch_kernel<T, Boxes, false, true>(params, stream);
    }
  }
  if constexpr (kShape.compiled_for(true, false)) {
    if (variant.a_mn && !variant.b_mn) {
      return launch_kernel<T, Tile, true, false>(params, stream);
    }
  }
  if (variant.a_mn || variant.b_mn) {
    return {cudaErrorInvalidValue, "a layout of the GEMM for small products"};
  }
  return launch_kernel<T, Tile, false, false>(params, stream);
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
    return launch_layout<T, kIndex>(params, variant, stream);
  }
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
