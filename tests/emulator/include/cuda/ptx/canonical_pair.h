// csrc/cuda/ptx/canonical_pair.h, emulated.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

inline uint32_t canonical_pair(uint32_t pair, uint32_t infinity) {
  uint32_t canonical = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    uint32_t bits = pair >> shift & 0xffff;
    if ((bits & 0x7fff) > infinity) bits = 0x7fff;
    if (bits == 0x8000) bits = 0;
    canonical |= bits << shift;
  }
  return canonical;
}
inline uint32_t canonical_f16x2(uint32_t pair) { return canonical_pair(pair, 0x7c00); }
inline uint32_t canonical_bf16x2(uint32_t pair) { return canonical_pair(pair, 0x7f80); }

inline uint32_t signs_16x2(uint32_t pair) {
  return (pair >> 31 != 0 ? 0xffff0000u : 0) | ((pair & 0x8000) != 0 ? 0xffffu : 0);
}

}  // namespace xgemm::ptx
