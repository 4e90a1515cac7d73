// csrc/cuda/ptx/prefetch.h, emulated: the bytes must exist.
#pragma once

#include <cstdint>

#include "emulator/engine.h"

namespace xgemm::ptx {

inline void prefetch_l2(const void* address) { *static_cast<const volatile char*>(address); }

inline void bulk_prefetch_l2(const void* address, uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0 || bytes % 16 != 0) {
    emulator::fail("a bulk prefetch that is not aligned to 16 bytes");
  }
  if (bytes > 0) prefetch_l2(static_cast<const char*>(address) + bytes - 1);
}

}  // namespace xgemm::ptx
