// What a kernel's choice depends on of the GPU.
#pragma once

namespace xgemm {

struct DeviceInfo {
  int sm_count = 0;
  int capability = 0;  // 10 * major + minor
  // As CUDA's attributes of the same names have them; 0: not known.
  int clock_khz = 0, memory_clock_khz = 0, memory_bus_bits = 0;

  bool operator==(const DeviceInfo&) const = default;
};

}  // namespace xgemm
