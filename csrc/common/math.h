// Integer arithmetic that sizes and tilings are computed with.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define XGEMM_HOST_DEVICE __host__ __device__
#else
#define XGEMM_HOST_DEVICE
#endif

namespace xgemm {

template <typename T>
XGEMM_HOST_DEVICE constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <typename T>
XGEMM_HOST_DEVICE constexpr T round_up(T a, T multiple) {
  return ceil_div(a, multiple) * multiple;
}

}  // namespace xgemm
