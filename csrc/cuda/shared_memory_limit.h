// A kernel that wants more than 48 KB of dynamic shared memory must say so, once on each device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace xgemm::cuda {

// One for each kernel, static.
class SharedMemoryLimit {
 public:
  cudaError_t raise(const void* kernel, int bytes);

  // As far as the device goes: for kernels that want more of it for some problems than for others.
  cudaError_t raise_to_most(const void* kernel);

 private:
  template <typename Bytes>
  cudaError_t raise_on_device(const void* kernel, Bytes bytes_of);

  uint64_t raised_ =
      0;  // a bit for each device; atomic, but kernels compile faster without <atomic>
};

}  // namespace xgemm::cuda
