// The sizes of this machine's caches.
#pragma once

#include <cstdint>

namespace xgemm::cpu {

struct CacheSizes {
  int64_t l1, l2, l3;  // bytes of data: of a core, of a core, of all that share one
};

// What is taken for a size that the machine does not tell.
inline constexpr CacheSizes kUsualCaches{32 << 10, 1 << 20, 32 << 20};

// Read once.
const CacheSizes& cache_sizes();

}  // namespace xgemm::cpu
