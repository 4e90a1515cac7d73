// What is known of the GPUs here, asked once per device.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "common/device.h"

namespace xgemm {

// XGEMM_CUDA_CAPABILITY=80 makes every choice that of a GPU of compute capability 8.0 or less: so
// the kernels of older GPUs are tested on a newer one.
inline int most_capability() {
  static const int most = [] {
    const char* value = std::getenv("XGEMM_CUDA_CAPABILITY");
    const int number = value == nullptr ? 0 : std::atoi(value);
    return number >= 80 ? number : 999;
  }();
  return most;
}

// XGEMM_CUDA_SMS=16 makes them for so many multiprocessors of those that there are: small problems
// then get the kernels of large ones, and several tiles to a CTA.
inline int most_sms() {
  static const int most = [] {
    const char* value = std::getenv("XGEMM_CUDA_SMS");
    const int number = value == nullptr ? 0 : std::atoi(value);
    return number > 0 ? number : 9999;
  }();
  return most;
}

inline DeviceInfo device_info(int device) {
  constexpr int kMaxDevices = 64;
  static std::array<std::atomic<int>, kMaxDevices> cache{};  // 0: not asked yet
  const int known = device < kMaxDevices ? cache[device].load(std::memory_order_relaxed) : 0;
  if (known != 0) return {known / 1000, known % 1000};
  int sm_count = 0, major = 0, minor = 0;
  cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  const DeviceInfo info{std::min(sm_count, most_sms()),
                        std::min(major * 10 + minor, most_capability())};
  if (device < kMaxDevices) {
    cache[device].store(info.sm_count * 1000 + info.capability, std::memory_order_relaxed);
  }
  return info;
}

// Without a GPU it has no multiprocessors.
inline DeviceInfo current_device() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();  // so that it is not blamed on the next call
    return {};
  }
  return device_info(device);
}

}  // namespace xgemm
