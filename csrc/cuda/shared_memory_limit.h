// A kernel that wants more than 48 KB of dynamic shared memory must say so, once on each device.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace xgemm::cuda {

// One for each kernel, static.
class SharedMemoryLimit {
 public:
  cudaError_t raise(const void* kernel, int bytes) {
    return raise_on_device(kernel, [bytes](int, int* most) {
      *most = bytes;
      return cudaSuccess;
    });
  }

  // As far as the device goes: for kernels that want more of it for some problems than for others.
  cudaError_t raise_to_most(const void* kernel) {
    return raise_on_device(kernel, [](int device, int* most) {
      return cudaDeviceGetAttribute(most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    });
  }

 private:
  template <typename Bytes>
  cudaError_t raise_on_device(const void* kernel, Bytes bytes_of) {
    int device = 0, bytes = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if (raised_.load(std::memory_order_relaxed) & bit) return cudaSuccess;
    error = bytes_of(device, &bytes);
    if (error != cudaSuccess) return error;
    const cudaError_t set =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (set == cudaSuccess) raised_.fetch_or(bit, std::memory_order_relaxed);
    return set;
  }

  std::atomic<uint64_t> raised_{0};  // a bit for each device
};

}  // namespace xgemm::cuda
