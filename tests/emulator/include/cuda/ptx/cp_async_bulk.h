// csrc/cuda/ptx/cp_async_bulk.h, emulated.
#pragma once

#include <cstring>

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

inline void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* barrier) {
  emulator::shared_address(dst), emulator::shared_address(barrier);
  if (reinterpret_cast<uintptr_t>(src) % 16 != 0 || emulator::shared_address(dst) % 16 != 0 ||
      bytes % 16 != 0) {
    emulator::fail("cp.async.bulk: an address or the size is not a multiple of 16");
  }
  emulator::start_copy([=] {
    std::memcpy(dst, src, bytes);
    emulator::mbarrier_complete(barrier, bytes);
  });
}

}  // namespace xgemm::ptx
