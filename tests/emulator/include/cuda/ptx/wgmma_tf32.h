// csrc/cuda/ptx/wgmma_tf32.h, emulated: one function for all widths.
#pragma once

#include "emulator/tensor_core.h"

namespace xgemm::ptx {

template <int kCount>
inline void wgmma_tf32(float (&d)[kCount], const float (&a)[4], uint64_t desc_b, int accumulate) {
  static_assert(kCount % 4 == 0 && kCount <= 128, "N is a multiple of 8, up to 256");
  emulator::wgmma({.type = emulator::Type16::kTf32,
                   .n = 2 * kCount,
                   .d = d,
                   .a = 0,
                   .b = desc_b,
                   .a_registers = reinterpret_cast<const uint32_t*>(a),
                   .accumulate = accumulate != 0});
}

template <int kCount>
inline void wgmma_tf32(float (&d)[kCount], uint64_t desc_a, uint64_t desc_b, int accumulate) {
  static_assert(kCount % 4 == 0 && kCount <= 128, "N is a multiple of 8, up to 256");
  emulator::wgmma({.type = emulator::Type16::kTf32,
                   .n = 2 * kCount,
                   .d = d,
                   .a = desc_a,
                   .b = desc_b,
                   .accumulate = accumulate != 0});
}

}  // namespace xgemm::ptx
