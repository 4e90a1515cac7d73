// csrc/cuda/ptx/lop3.h, emulated.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

inline uint32_t lop3_and_or(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }

}  // namespace xgemm::ptx
