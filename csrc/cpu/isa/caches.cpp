#include "cpu/isa/caches.h"

#include <unistd.h>

namespace xgemm::cpu {
namespace {

int64_t size_or(int name, int64_t usual) {
  const long size = sysconf(name);
  return size > 0 ? size : usual;
}

}  // namespace

const CacheSizes& cache_sizes() {
  static const CacheSizes sizes{size_or(_SC_LEVEL1_DCACHE_SIZE, kUsualCaches.l1),
                                size_or(_SC_LEVEL2_CACHE_SIZE, kUsualCaches.l2),
                                size_or(_SC_LEVEL3_CACHE_SIZE, kUsualCaches.l3),
                                size_or(_SC_LEVEL1_DCACHE_ASSOC, kUsualCaches.l1_ways)};
  return sizes;
}

}  // namespace xgemm::cpu
