#pragma once

#include <cstdint>

#include "common/math.h"

namespace xgemm {

// Division by a number that the host knows, without the 25 instructions of a division.
struct FastDivisor {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  constexpr FastDivisor() = default;
  constexpr explicit FastDivisor(uint32_t by) : divisor(by) {  // 1 to 2^31
    while ((uint64_t{1} << shift) < by) ++shift;
    multiplier = static_cast<uint32_t>((((uint64_t{1} << shift) - by) << 32) / by + 1);
  }

  XGEMM_HOST_DEVICE constexpr uint32_t divide(uint32_t x) const {  // below 2^31
    return (static_cast<uint32_t>(uint64_t{x} * multiplier >> 32) + x) >> shift;
  }
};

}  // namespace xgemm
