// Asking L2 for global memory that is read later. Nothing is read yet: a write that comes between
// is seen, since L2 is where writes go.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// The line of `address`.
__device__ inline void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// `bytes` from `address` on, multiples of 16 both, by the copy engine (sm_90).
__device__ inline void bulk_prefetch_l2(const void* address, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes));
}

}  // namespace xgemm::ptx
