// One lane of a warp (sm_90), chosen so that the compiler knows it to be alone: operands of bulk
// copies then go to uniform registers without a loop over lanes.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// All lanes of the warp must be there.
__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace xgemm::ptx
