// One thread of a warp (elect.sync, sm_90).
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// True in one lane of the whole warp that is here. Where the compiler knows that one thread is left
// it takes operands of TMA from uniform registers as they are; behind `lane == 0` it writes a loop
// around each load, over the lanes that might want different ones.
__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace xgemm::ptx
