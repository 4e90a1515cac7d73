// How many clusters of one block an SM the GPU runs at once: fewer than its SMs could hold, where
// SMs lie in groups that the size of the cluster does not divide.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

namespace xgemm::cuda {

// One for each kernel, static. Asks once on each device.
class ActiveClusters {
 public:
  // With clusters of 1 << log2_cluster blocks of `threads`, each with as much shared memory as
  // `kernel` has been allowed; 0 where the driver does not say.
  int most(const void* kernel, int threads, int shared_bytes, int log2_cluster) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || log2_cluster >= kSizes) return 0;
    std::atomic<int>* known = device < kDevices ? &known_[device][log2_cluster] : nullptr;
    int clusters = known != nullptr ? known->load(std::memory_order_relaxed) : 0;
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
    if (known != nullptr) known->store(clusters, std::memory_order_relaxed);
    return clusters;
  }

 private:
  static constexpr int kDevices = 64, kSizes = 4;
  std::atomic<int> known_[kDevices][kSizes] = {};
};

}  // namespace xgemm::cuda
