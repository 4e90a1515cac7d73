// A GPU that a test describes.
#pragma once

#include <array>

#include "common/device.h"

// As DeviceInfo has them: the clock, the memory's, its bus; zeros where they are not known.
using Clocks = std::array<int, 3>;

inline xgemm::DeviceInfo device_of(int capability, int sm_count, const Clocks& clocks = {}) {
  return {.sm_count = sm_count,
          .capability = capability,
          .clock_khz = clocks[0],
          .memory_clock_khz = clocks[1],
          .memory_bus_bits = clocks[2]};
}
