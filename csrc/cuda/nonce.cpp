#include "cuda/nonce.h"

#include <atomic>

namespace xgemm::cuda {

uint64_t new_nonce() {
  static std::atomic<uint64_t> launches{0};
  uint64_t x = (launches.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;  // splitmix64, where 0 comes from 0 only
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

}  // namespace xgemm::cuda
