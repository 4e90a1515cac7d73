// The launch that all of the kernels have in common.
#pragma once

#include "cuda/active_clusters.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/w4a16/sm90/wgmma/params.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

inline int log2_of(int x) {
  int log2 = 0;
  while (1 << log2 < x) ++log2;
  return log2;
}

template <auto kKernel, typename Config, int kSmem>
Status launch_kernel(Params params, const Work& work, cudaStream_t stream) {
  constexpr const char* kName = "the W4A16 product by wgmma";
  const void* address = reinterpret_cast<const void*>(kKernel);
  static_assert(kSmem <= kMaxSmemBytes, "a CTA has 227 KB of shared memory");
  static SharedMemoryLimit limit;
  static ActiveClusters active;
  const cudaError_t set = limit.raise(address, kSmem);
  if (set != cudaSuccess) return {set, kName};
  const int cluster = params.sharers << params.split_shift;
  params.clusters = work.clusters;
  if (cluster > 1) {
    const int most = active.most(address, Config::kThreads, kSmem, log2_of(cluster));
    if (most > 0) params.clusters = min(params.clusters, most);
  }
  const uint32_t units = params.tiles * params.units;  // of even shares, which see to its range
  params.units_each = units / params.clusters, params.units_extra = units % params.clusters;
  if (params.stream_k) {
    params.lead = lead_of(Config::kConsumers, Config::kRows, params.units, units, params.clusters);
  }
  const Grid grid{.blocks = dim3(params.clusters * cluster),
                  .threads = dim3(Config::kThreads),
                  .shared_bytes = kSmem,
                  .stream = stream,
                  .cluster = dim3(cluster),
                  .overlaps_previous = work.overlaps_previous};
  return launch_grid(kName, grid, kKernel, params);
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
