// csrc/cuda/ptx/bulk_load_policy.h, emulated.
#pragma once

#include <cstring>

#include "cuda/ptx/l2_policy.h"
#include "cuda/ptx/mbarrier.h"
#include "emulator/engine.h"

namespace xgemm::ptx {

inline void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* barrier, uint64_t) {
  if (reinterpret_cast<uintptr_t>(src) % 16 != 0 || smem_address(dst) % 16 != 0 ||
      bytes % 16 != 0) {
    emulator::fail("a bulk copy that is not aligned to 16 bytes");
  }
  emulator::start_copy([=] {
    std::memcpy(dst, src, bytes);
    emulator::mbarrier_complete(barrier, bytes);
  });
}

}  // namespace xgemm::ptx
