// csrc/cuda/ptx/ld_streaming.h, emulated.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

inline uint16_t ld_global_streaming(const uint16_t* pointer) { return *pointer; }
inline uint32_t ld_global_streaming(const uint32_t* pointer) { return *pointer; }

}  // namespace xgemm::ptx
