// csrc/cuda/ptx/opaque.h, emulated.
#pragma once

namespace xgemm::ptx {

inline const char* opaque(const char* pointer) { return pointer; }
inline int opaque(int value) { return value; }

inline int opaque(int number) { return number; }

}  // namespace xgemm::ptx
