// Launches of kernels, all by the one function that takes clusters, too.
#pragma once

#include <cuda_runtime.h>

#include "common/status.h"

namespace xgemm::cuda {

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes = 0;  // dynamic shared memory of a block
  cudaStream_t stream = nullptr;
  dim3 cluster = dim3(1, 1, 1);  // blocks
  // Blocks may start before the kernels before this one in the stream have ended: the kernel waits
  // for them itself (ptx/griddep.h).
  bool overlaps_previous = false;
};

// `where` names the step in the status, should it fail.
template <typename... Params, typename... Args>
Status launch_grid(const char* where, const Grid& grid, void (*kernel)(Params...),
                   const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = grid.stream;
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (grid.cluster.x * grid.cluster.y * grid.cluster.z > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = grid.cluster.x;
    cluster.val.clusterDim.y = grid.cluster.y;
    cluster.val.clusterDim.z = grid.cluster.z;
  }
  if (grid.overlaps_previous) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
  if (error != cudaSuccess) cudaGetLastError();  // so that it is not blamed on the next call
  return {error, where};
}

}  // namespace xgemm::cuda
