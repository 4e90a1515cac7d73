// csrc/cuda/ptx/wgmma.h, emulated.
#pragma once

#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/wgmma_shapes.h"

namespace xgemm::ptx {

inline void wgmma_fence() { emulator::wgmma_fence(); }
inline void wgmma_commit_group() { emulator::wgmma_commit_group(); }
template <int kPending>
inline void wgmma_wait_group() {
  emulator::wgmma_wait_group(kPending);
}

inline uint64_t wgmma_descriptor(const void* tile, uint32_t leading, uint32_t stride) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  return kSwizzle128 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(leading >> 4) << 16 | (smem_address(tile) & 0x3ffff) >> 4;
}

}  // namespace xgemm::ptx
