// Values that the compiler takes as they come.
#pragma once

namespace xgemm::ptx {

// The same pointer, of unknown origin: a chain p += step then stays a chain of additions, where the
// compiler would compute p + i * step anew for each i, and what leads to it is computed here, not
// where it is first used.
template <typename Pointee>
__device__ inline Pointee* opaque(Pointee* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// The same value, which the compiler then keeps in a register: it would compute it anew wherever it
// is used, were it a few instructions from what every thread has.
__device__ inline int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A copy, in a register of its own from here on.
__device__ inline float opaque(float value) {
  float copy;
  asm volatile("mov.b32 %0, %1;" : "=f"(copy) : "f"(value));
  return copy;
}

}  // namespace xgemm::ptx
