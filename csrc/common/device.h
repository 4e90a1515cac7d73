// What a kernel's choice depends on of the GPU.
#pragma once

namespace xgemm {

struct DeviceInfo {
  int sm_count = 0;
  int capability = 0;  // 10 * major + minor
};

}  // namespace xgemm
