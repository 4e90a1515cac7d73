#include "cuda/active_clusters.h"

#include <atomic>

namespace xgemm::cuda {

int ActiveClusters::most(const void* kernel, int threads, int shared_bytes, int log2_cluster) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || log2_cluster >= kSizes) return 0;
  int* known = device < kDevices ? &known_[device][log2_cluster] : nullptr;
  int clusters = known != nullptr ? std::atomic_ref(*known).load(std::memory_order_relaxed) : 0;
  if (clusters > 0) return clusters;
  cudaLaunchAttribute shape{};
  shape.id = cudaLaunchAttributeClusterDimension;
  shape.val.clusterDim.x = 1u << log2_cluster;
  shape.val.clusterDim.y = shape.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1u << log2_cluster);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &shape;
  config.numAttrs = 1;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
    cudaGetLastError();  // so that it is not blamed on the next call
    return 0;
  }
  if (known != nullptr) std::atomic_ref(*known).store(clusters, std::memory_order_relaxed);
  return clusters;
}

}  // namespace xgemm::cuda
