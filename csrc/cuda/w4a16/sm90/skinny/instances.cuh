// From the rows of X and the groups to the kernel compiled for them.
#pragma once

#include "cuda/active_clusters.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/w4a16/sm90/skinny/kernel.cuh"

namespace xgemm::cuda::w4a16::sm90::skinny {

template <typename T, int kTiles, Format kFormat, int kStrips = kNarrowStrips>
Status launch_kernel(Params params, const Work& work, cudaStream_t stream) {
  constexpr const char* kName = "the skinny W4A16 kernel";
  const auto kernel = skinny_kernel<T, kTiles, kFormat, kStrips>;
  const void* address = reinterpret_cast<const void*>(kernel);
  static SharedMemoryLimit limit;
  static ActiveClusters active;
  const cudaError_t set = limit.raise(address, kSmemBytes);
  if (set != cudaSuccess) return {set, kName};
  const int threads = (params.warps + params.reducers) * 32, cluster = 1 << params.log2_cluster;
  params.clusters = work.most_clusters;
  if (cluster > 1) {
    const int most = active.most(address, threads, kSmemBytes, params.log2_cluster);
    if (most > 0) params.clusters = min(params.clusters, most);
  }
  // A CTA an SM, which is what the tiles are shared out for: where a launch begins early, two small
  // ones could find room on an SM that others have left, and take twice as long as the rest.
  const int64_t bytes = max(params.shared.bytes, int64_t{kSmemBytes / 2 + 1024});
  const Waves waves = share_tiles(work.strips, params.clusters, kStrips);
  params.tiles_each = waves.each, params.tiles_extra = waves.extra;
  params.tile_strips = kStrips, params.extra_strips = waves.extra_strips;
  params.wave_strips = params.clusters * kStrips;
  return launch_grid(kName,
                     {.blocks = dim3(params.clusters * cluster),
                      .threads = dim3(threads),
                      .shared_bytes = static_cast<size_t>(bytes),
                      .stream = stream,
                      .cluster = dim3(cluster),
                      .overlaps_previous = true},
                     kernel, params);
}

template <typename T>
Status launch_typed(const Params& params, const Work& work, cudaStream_t stream) {
  if (work.wide) return launch_kernel<T, 1, Format::kPlain, kWideStrips>(params, work, stream);
  const auto run = [&]<int kTiles>() {
    if constexpr (kTiles <= most_mma_tiles(true)) {
      if (params.groups > 1) return launch_kernel<T, kTiles, Format::kFine>(params, work, stream);
    }
    return work.plain ? launch_kernel<T, kTiles, Format::kPlain>(params, work, stream)
                      : launch_kernel<T, kTiles, Format::kOneGroup>(params, work, stream);
  };
  switch (ceil_div(params.rows, kMmaRows)) {
    case 1:
      return run.template operator()<1>();
    case 2:
      return run.template operator()<2>();
    default:
      return run.template operator()<3>();
  }
}

}  // namespace xgemm::cuda::w4a16::sm90::skinny
