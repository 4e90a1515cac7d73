// csrc/cuda/ptx/mma_sm80.h, emulated.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "emulator/tensor_core.h"

namespace xgemm::ptx {

template <typename T>
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  constexpr auto kType =
      std::is_same_v<T, __half> ? emulator::Type16::kF16 : emulator::Type16::kBF16;
  emulator::mma_m16n8k16(kType, d, a, {b0, b1});
}
template <typename T>
inline void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                         uint32_t b0, uint32_t b1) {
  mma_m16n8k16<T>(d, {a0, a1, a2, a3}, b0, b1);
}
template <typename T>
inline void mma_m16n8k16_first(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                               uint32_t b0, uint32_t b1) {
  for (float& x : d) x = 0.0f;
  mma_m16n8k16<T>(d, {a0, a1, a2, a3}, b0, b1);
}

}  // namespace xgemm::ptx
