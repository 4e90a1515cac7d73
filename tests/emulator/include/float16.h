// The two 16-bit floating-point types, for cuda_fp16.h and cuda_bf16.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "vector_types.h"

namespace xgemm::emulator {

struct Binary16 {
  static float decode(uint16_t bits) {
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16, rest = bits & 0x7fffu;
    if (rest < 0x400) {  // zero and subnormal numbers
      return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(rest) * 0x1p-24f) |
                                  sign);
    }
    const uint32_t bias = rest < 0x7c00 ? (127 - 15) << 23 : (255 - 31) << 23;
    return std::bit_cast<float>(sign | ((rest << 13) + bias));
  }
  static uint16_t encode(float x) {
    uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return 0x7fff;  // NaN
    if (bits < 0x38800000) {               // subnormal: the addition rounds
      const float sum = std::bit_cast<float>(bits) + 0.5f;
      return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000));
    }
    if (bits >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
    bits += 0xfff + (bits >> 13 & 1);
    return static_cast<uint16_t>(sign | ((bits - 0x38000000) >> 13));
  }
};

struct BFloat16 {
  static float decode(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static uint16_t encode(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

template <typename Self, typename Format>
struct Float16 {
  uint16_t bits;
  Float16() = default;
  Float16(float x) : bits(Format::encode(x)) {}            // NOLINT: implicit, as in CUDA
  operator float() const { return Format::decode(bits); }  // NOLINT
};

// One rounding of what double holds: exactly, but for sums of very different magnitudes.
template <typename T>
T round_from_double(double x) {
  float nearest = static_cast<float>(x);
  // Round to odd, so that the second rounding does not see a tie that was none.
  if (static_cast<double>(nearest) != x && std::isfinite(nearest)) {
    const bool above = std::fabs(static_cast<double>(nearest)) > std::fabs(x);
    uint32_t bits = std::bit_cast<uint32_t>(nearest) - (above ? 1 : 0);
    nearest = std::bit_cast<float>(bits | 1);
  }
  return T(nearest);
}

}  // namespace xgemm::emulator

// Arithmetic of one type and of pairs, each operation rounded once.
#define XGEMM_FLOAT16_FUNCTIONS(ONE, TWO, NAME)                                                    \
  struct alignas(4) TWO {                                                                          \
    ONE x, y;                                                                                      \
  };                                                                                               \
  inline ONE __hfma(ONE a, ONE b, ONE c) {                                                         \
    return xgemm::emulator::round_from_double<ONE>(double{float(a)} * float(b) + float(c));        \
  }                                                                                                \
  inline ONE __hadd(ONE a, ONE b) { return ONE(float(a) + float(b)); }                             \
  inline ONE __hsub(ONE a, ONE b) { return ONE(float(a) - float(b)); }                             \
  inline ONE __hmul(ONE a, ONE b) { return ONE(float(a) * float(b)); }                             \
  inline TWO __hfma2(TWO a, TWO b, TWO c) {                                                        \
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                         \
  }                                                                                                \
  inline TWO __hadd2(TWO a, TWO b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }                \
  inline TWO __hsub2(TWO a, TWO b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }                \
  inline TWO __hmul2(TWO a, TWO b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }                \
  inline TWO __habs2(TWO a) { return {ONE(std::fabs(float(a.x))), ONE(std::fabs(float(a.y)))}; }   \
  inline ONE __hmin(ONE a, ONE b) { return ONE(std::fmin(float(a), float(b))); }                   \
  inline ONE __hmax(ONE a, ONE b) { return ONE(std::fmax(float(a), float(b))); }                   \
  inline TWO __hmin2(TWO a, TWO b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                \
  inline TWO __hmax2(TWO a, TWO b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                \
  inline bool __hblt2(TWO a, TWO b) { return float(a.x) < float(b.x) && float(a.y) < float(b.y); } \
  inline ONE __low2##NAME(TWO a) { return a.x; }                                                   \
  inline ONE __high2##NAME(TWO a) { return a.y; }                                                  \
  inline float __low2float(TWO a) { return a.x; }                                                  \
  inline float __high2float(TWO a) { return a.y; }
