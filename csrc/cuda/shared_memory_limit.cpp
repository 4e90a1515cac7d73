#include "cuda/shared_memory_limit.h"

#include <atomic>

namespace xgemm::cuda {

cudaError_t SharedMemoryLimit::raise(const void* kernel, int bytes) {
  return raise_on_device(kernel, [bytes](int, int* most) {
    *most = bytes;
    return cudaSuccess;
  });
}

cudaError_t SharedMemoryLimit::raise_to_most(const void* kernel) {
  return raise_on_device(kernel, [](int device, int* most) {
    return cudaDeviceGetAttribute(most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  });
}

template <typename Bytes>
cudaError_t SharedMemoryLimit::raise_on_device(const void* kernel, Bytes bytes_of) {
  int device = 0, bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::atomic_ref<uint64_t> raised(raised_);
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (raised.load(std::memory_order_relaxed) & bit) return cudaSuccess;
  error = bytes_of(device, &bytes);
  if (error != cudaSuccess) return error;
  const cudaError_t set =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (set == cudaSuccess) raised.fetch_or(bit, std::memory_order_relaxed);
  return set;
}

}  // namespace xgemm::cuda
