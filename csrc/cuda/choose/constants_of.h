// The constants of the GPU that a kernel is chosen for.
#pragma once

#include <cstdlib>

#include "common/device.h"
#include "cuda/choose/device_constants.h"
#include "cuda/choose/h200.h"

namespace xgemm::cuda::choose {

// Of an SM, each cycle, dense products of 16 bits: of its tensor cores, and those of them that
// mma.sync reaches (Hopper and Blackwell of data centers keep the rest for wgmma and tcgen05).
struct MmaRates {
  double flops, mma_sync;
};
inline MmaRates mma_rates(int capability) {
  constexpr double kMmaSyncOfHopper = 2970;  // H200: what the fit of gemm/sm80 comes to
  switch (capability) {
    case 80:
      return {2048, 2048};
    case 90:
      return {4096, kMmaSyncOfHopper};
    case 100:
    case 103:
      return {8192, kMmaSyncOfHopper};
    default:
      return {1024, 1024};
  }
}

// From what `measured` has, as clocks, SMs and the memory bus differ.
inline DeviceConstants derive(const DeviceInfo& device, const DeviceConstants& measured) {
  DeviceConstants found = measured;
  found.sm_count = device.sm_count;
  found.clock_khz = device.clock_khz;
  found.memory_clock_khz = device.memory_clock_khz;
  found.memory_bus_bits = device.memory_bus_bits;
  const auto bits_per_ms = [](double memory_clock_khz, double memory_bus_bits) {
    return memory_clock_khz * memory_bus_bits;
  };
  found.clock_speed = static_cast<double>(device.clock_khz) / measured.clock_khz;
  found.dram_speed = bits_per_ms(device.memory_clock_khz, device.memory_bus_bits) /
                     bits_per_ms(measured.memory_clock_khz, measured.memory_bus_bits);
  found.all_sms_speed = found.clock_speed * device.sm_count / measured.sm_count;
  found.l2_speed = found.all_sms_speed;  // each SM asks it for as much a cycle
  // The least read is all latency.
  const double least_us = measured.reads[0].us;
  for (auto& read : found.reads) read.us = least_us + (read.us - least_us) / found.dram_speed;
  found.mma_cycles_per_us *= found.clock_speed;
  found.fma_cycles_per_us *= found.clock_speed;
  const MmaRates rates = mma_rates(device.capability), reference = mma_rates(90);
  found.mma_flops_per_cycle = rates.flops;
  found.mma_sync_speed = rates.mma_sync / reference.mma_sync * found.clock_speed;
  return found;
}

// Whether they are this GPU's, one of which may have a little less of a memory bus than another.
// (The SMs and the capability may be fewer than there are, as the environment says.)
inline bool describe(const DeviceConstants& gpu, const DeviceInfo& device) {
  return device.clock_khz == gpu.clock_khz && device.memory_clock_khz == gpu.memory_clock_khz &&
         std::abs(device.memory_bus_bits - gpu.memory_bus_bits) * 32 <= gpu.memory_bus_bits;
}

// Measured ones of a GPU that has been calibrated, or whose attributes are not known; else derived
// from its attributes. The reference is good until the thread asks for another GPU's.
inline const DeviceConstants& constants_of(const DeviceInfo& device) {
  const bool known =
      device.clock_khz > 0 && device.memory_clock_khz > 0 && device.memory_bus_bits > 0;
  if (!known || describe(kH200, device)) return kH200;
  thread_local DeviceInfo last{};
  thread_local DeviceConstants of_last = kH200;
  if (device != last) of_last = derive(device, kH200), last = device;
  return of_last;
}

}  // namespace xgemm::cuda::choose
