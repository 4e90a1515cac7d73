// wgmma m64nNk16 (sm_90a): D[64, N] fp32 in registers += A[64, 16] B[16, N], both in shared memory.
// wgmma<T, kTransposeA, kTransposeB>(d, descriptor of A, descriptor of B, accumulate) is in
// wgmma_shapes.h: d += A B, or d = A B where `accumulate` is 0. kTranspose: MN-major operand.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/wgmma_shapes.h"

namespace xgemm::ptx {

// Orders register and shared-memory accesses before the first wgmma that uses them.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Descriptor of an operand tile with the 128-byte swizzle; `tile` is aligned to 1024 bytes (or,
// K-major, advanced within its first row). Byte offsets as in the PTX manual: K-major: `stride`
// from 8 rows to the next 8, `leading` unused; MN-major: `leading` from 64 elements to the next 64,
// `stride` from 8 k to the next 8.
__device__ inline uint64_t wgmma_descriptor(const void* tile, uint32_t leading, uint32_t stride) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  return kSwizzle128 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(leading >> 4) << 16 | (smem_address(tile) & 0x3ffff) >> 4;
}

}  // namespace xgemm::ptx
