// csrc/cuda/ptx/wgmma_shapes.h, emulated: one function for all widths.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "emulator/tensor_core.h"

namespace xgemm::ptx {

template <typename T, int kTransposeA, int kTransposeB, int kCount>
inline void wgmma(float (&d)[kCount], uint64_t desc_a, uint64_t desc_b, int accumulate) {
  static_assert(kCount % 4 == 0 && kCount <= 128, "N is a multiple of 8, up to 256");
  emulator::wgmma(
      {.type = std::is_same_v<T, __half> ? emulator::Type16::kF16 : emulator::Type16::kBF16,
       .n = 2 * kCount,
       .d = d,
       .a = desc_a,
       .b = desc_b,
       .a_mn_major = kTransposeA != 0,
       .b_mn_major = kTransposeB != 0,
       .accumulate = accumulate != 0});
}

template <typename T, int kTransposeB, int kCount>
inline void wgmma(float (&d)[kCount], const uint32_t (&a)[4], uint64_t desc_b, int accumulate) {
  static_assert(kCount % 4 == 0 && kCount <= 128, "N is a multiple of 8, up to 256");
  emulator::wgmma(
      {.type = std::is_same_v<T, __half> ? emulator::Type16::kF16 : emulator::Type16::kBF16,
       .n = 2 * kCount,
       .d = d,
       .a = 0,
       .b = desc_b,
       .a_registers = a,
       .b_mn_major = kTransposeB != 0,
       .accumulate = accumulate != 0});
}

}  // namespace xgemm::ptx
