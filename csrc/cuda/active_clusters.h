// How many clusters of one block an SM the GPU runs at once: fewer than its SMs could hold, where
// SMs lie in groups that the size of the cluster does not divide.
#pragma once

#include <cuda_runtime_api.h>

namespace xgemm::cuda {

// One for each kernel, static. Asks once on each device.
class ActiveClusters {
 public:
  // With clusters of 1 << log2_cluster blocks of `threads`, each with as much shared memory as
  // `kernel` has been allowed; 0 where the driver does not say.
  int most(const void* kernel, int threads, int shared_bytes, int log2_cluster);

 private:
  static constexpr int kDevices = 64, kSizes = 4;
  int known_[kDevices][kSizes] = {};  // 0: not asked yet; atomic, as in SharedMemoryLimit
};

}  // namespace xgemm::cuda
