// The larger of two numbers, NaN where one is NaN (PTX ISA 7.0, sm_80).
#pragma once

namespace xgemm::ptx {

__device__ inline float max_nan(float a, float b) {
  float largest;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
  return largest;
}

}  // namespace xgemm::ptx
