// csrc/cuda/ptx/wmma.h, emulated: lane l has 8 elements of row l / 2 of each tile.
#pragma once

#include <cuda_fp16.h>

#include "emulator/tensor_core.h"

namespace xgemm::ptx {

inline void wmma_load_a(uint32_t (&a)[8], const __half* tile, int stride) {
  emulator::wmma_load(a, tile, stride);
}
inline void wmma_load_b(uint32_t (&b)[8], const __half* tile, int stride) {
  emulator::wmma_load(b, tile, stride);
}
inline void wmma_mma(float (&d)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  emulator::wmma_mma(d, a, b);
}
inline void wmma_store(float* tile, const float (&d)[8], int stride) {
  emulator::wmma_store(tile, d, stride);
}

}  // namespace xgemm::ptx
