// csrc/cuda/ptx/cp_async.h, emulated.
#pragma once

#include "emulator/engine.h"

namespace xgemm::ptx {

template <int kBytes>
inline void cp_async(uint32_t smem, const void* global, int valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  if (smem % kBytes != 0 || (valid > 0 && reinterpret_cast<uintptr_t>(global) % kBytes != 0)) {
    emulator::fail("cp.async: an address is not a multiple of " + std::to_string(kBytes));
  }
  if (valid < 0 || valid > kBytes) emulator::fail("cp.async: more bytes than it copies");
  emulator::current().copies.add({emulator::shared_pointer(smem), global, kBytes, valid});
}
inline void cp_async_16_or_zero(uint32_t smem, const void* global, bool copy) {
  cp_async<16>(smem, global, copy ? 16 : 0);
}
inline void cp_async_commit_group() { emulator::current().copies.commit(); }
template <int kPending>
inline void cp_async_wait_group() {
  emulator::current().copies.wait(kPending);
}

}  // namespace xgemm::ptx
