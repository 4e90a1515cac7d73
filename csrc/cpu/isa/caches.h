// The sizes of this machine's caches.
#pragma once

#include <cstdint>

namespace xgemm::cpu {

struct CacheSizes {
  int64_t l1, l2, l3;   // bytes of data: of a core, of a core, of all that share one
  int64_t l1_ways = 8;  // lines of the L1 cache whose addresses are the same modulo l1 / l1_ways
};

// What is taken for a size that the machine does not tell.
inline constexpr CacheSizes kUsualCaches{32 << 10, 1 << 20, 32 << 20};

// Read once.
const CacheSizes& cache_sizes();

}  // namespace xgemm::cpu
