// fp16 and bf16 to and from fp32, in plain C++: what the vector code must equal bit for bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/dtype.h"

namespace xgemm::cpu {

inline float bf16_to_float(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

// Round to nearest even; a NaN stays a (quiet) NaN of its sign.
inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float half_to_float(uint16_t x) {
  const uint32_t sign = (x & 0x8000u) << 16;
  const uint32_t magnitude = x & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, or NaN made quiet as the hardware does
    const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | quiet);
  }
  if (magnitude < 0x0400u) {  // zero and subnormals: exact in fp32
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

// Round to nearest even, overflow to infinity, a NaN stays a (quiet) NaN.
inline uint16_t float_to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // from 65520 on, which rounds to 65536
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below the smallest normal half: adding 0.5 leaves the value in units of 2^-24, rounded by the
    // addition itself.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// The element at `address` of a floating type of at most 32 bits.
inline float load_float(const void* address, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, address, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, address, sizeof(bits));
  return dtype == DType::kF16 ? half_to_float(bits) : bf16_to_float(bits);
}

inline void store_float(void* address, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(address, &value, sizeof(value));
    return;
  }
  const uint16_t bits = dtype == DType::kF16 ? float_to_half(value) : float_to_bf16(value);
  std::memcpy(address, &bits, sizeof(bits));
}

}  // namespace xgemm::cpu
