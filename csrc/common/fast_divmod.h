// Division by a number that is known before the kernel starts: a multiplication and two shifts.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace xgemm {

// For dividends and divisors below 2^31.
struct FastDivmod {
  uint32_t divisor = 1, multiplier = 0;
  int shift = 0;

  FastDivmod() = default;
  explicit FastDivmod(uint32_t d) : divisor(d) {
    if (d == 1) return;  // multiplier 0 stands for it
    while ((uint64_t{1} << shift) < d) ++shift;
    // ceil(2^(31 + shift) / d): exact for every dividend below 2^31
    multiplier = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + d - 1) / d);
  }

  XGEMM_HOST_DEVICE uint32_t divide(uint32_t n) const {
    if (multiplier == 0) return n;
    return static_cast<uint32_t>((uint64_t{n} * multiplier) >> 31 >> shift);
  }
  XGEMM_HOST_DEVICE uint32_t divide(uint32_t n, uint32_t* remainder) const {
    const uint32_t quotient = divide(n);
    *remainder = n - quotient * divisor;
    return quotient;
  }
};

}  // namespace xgemm
