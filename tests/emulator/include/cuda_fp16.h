// Stand-in for the CUDA toolkit's header: fp16 with correct rounding.
#pragma once

#include "float16.h"

struct __half : xgemm::emulator::Float16<__half, xgemm::emulator::Binary16> {
  using Float16::Float16;
};
XGEMM_FLOAT16_FUNCTIONS(__half, __half2, half)

inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return xgemm::emulator::round_from_double<__half>(x); }
inline float __half2float(__half x) { return static_cast<float>(x); }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 x) { return {__half(x.x), __half(x.y)}; }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __low2half2(__half2 x) { return {x.x, x.x}; }
inline __half2 __high2half2(__half2 x) { return {x.y, x.y}; }
