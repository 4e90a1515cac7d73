// csrc/cuda/ptx/opaque.h, emulated.
#pragma once

namespace xgemm::ptx {

template <typename Pointee>
inline Pointee* opaque(Pointee* pointer) {
  return pointer;
}
inline int opaque(int value) { return value; }
inline float opaque(float value) { return value; }

}  // namespace xgemm::ptx
