// A kernel that wants clusters of more than 8 blocks must say so, once on each device.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace xgemm::cuda {

// One for each kernel, static.
class ClusterLimit {
 public:
  cudaError_t raise(const void* kernel) {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if (raised_.load(std::memory_order_relaxed) & bit) return cudaSuccess;
    const cudaError_t set =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (set == cudaSuccess) raised_.fetch_or(bit, std::memory_order_relaxed);
    return set;
  }

 private:
  std::atomic<uint64_t> raised_{0};  // a bit for each device
};

}  // namespace xgemm::cuda
