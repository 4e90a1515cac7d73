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
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = grid.cluster.x;
  cluster.val.clusterDim.y = grid.cluster.y;
  cluster.val.clusterDim.z = grid.cluster.z;
  config.attrs = &cluster;
  config.numAttrs = grid.cluster.x * grid.cluster.y * grid.cluster.z > 1 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
  if (error != cudaSuccess) cudaGetLastError();  // so that it is not blamed on the next call
  return {error, where};
}

}  // namespace xgemm::cuda
