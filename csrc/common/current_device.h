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

inline DeviceInfo ask_device(int device) {
  const auto attribute = [device](cudaDeviceAttr which) {
    int value = 0;
    cudaDeviceGetAttribute(&value, which, device);
    return value;
  };
  const int capability = attribute(cudaDevAttrComputeCapabilityMajor) * 10 +
                         attribute(cudaDevAttrComputeCapabilityMinor);
  return {.sm_count = std::min(attribute(cudaDevAttrMultiProcessorCount), most_sms()),
          .capability = std::min(capability, most_capability()),
          .clock_khz = attribute(cudaDevAttrClockRate),
          .memory_clock_khz = attribute(cudaDevAttrMemoryClockRate),
          .memory_bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth)};
}

inline DeviceInfo device_info(int device) {
  constexpr int kMaxDevices = 64;
  static std::array<std::atomic<const DeviceInfo*>, kMaxDevices> cache{};  // kept for good
  if (device >= kMaxDevices) return ask_device(device);
  std::atomic<const DeviceInfo*>& known = cache[device];
  const DeviceInfo* info = known.load(std::memory_order_acquire);
  if (info == nullptr) {
    const auto* asked = new DeviceInfo(ask_device(device));
    // Another thread may have asked meanwhile.
    if (known.compare_exchange_strong(info, asked, std::memory_order_acq_rel)) {
      info = asked;
    } else {
      delete asked;
    }
  }
  return *info;
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
