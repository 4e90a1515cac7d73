// L2's policies for a load: what createpolicy.fractional makes of evict_first, and of nothing (on
// sm_80 and on sm_90).
#pragma once

#include <cstdint>

namespace xgemm::ptx {

inline constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictNormal = 0x1016000000000000;

}  // namespace xgemm::ptx
