// From fp32 to the type of a result, rounded to nearest even.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace xgemm::cuda {

template <typename T>
__device__ inline T round_to(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    static_assert(std::is_same_v<T, float>);
    return x;
  }
}

// Two neighbours in a register, the first in its lower half.
template <typename T>
__device__ inline uint32_t pack2(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

}  // namespace xgemm::cuda
