// cp.async (sm_80): copies from global to shared memory that a thread does not
// wait for.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// Copies `valid` bytes (0 .. kBytes) and zeroes the rest of kBytes; with 0
// nothing is read. Both addresses are multiples of kBytes.
template <int kBytes>
__device__ inline void cp_async(uint32_t smem, const void* global, int valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  if constexpr (kBytes == 16) {  // past L1, where a tile would only push out others
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(global),
                 "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(smem), "l"(global),
                 "n"(kBytes), "r"(valid)
                 : "memory");
  }
}

// Copies 16 bytes, or zeroes them and reads nothing.
__device__ inline void cp_async_16_or_zero(uint32_t smem, const void* global, bool copy) {
  asm volatile(
      "{\n"
      ".reg .pred ignore;\n"
      "setp.eq.u32 ignore, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignore;\n"
      "}" ::"r"(smem),
      "l"(global), "r"(static_cast<uint32_t>(copy))
      : "memory");
}

__device__ inline void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most kPending of this thread's groups, the latest ones, are under
// way.
template <int kPending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace xgemm::ptx
