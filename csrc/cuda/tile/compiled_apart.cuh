// Where the compiler puts code.
#pragma once

namespace xgemm::cuda {

// The same, of which the compiler knows nothing. Of `if (x) a(); else b();` it may put b's code in
// front of a's; in `if (x) a(); if (compiled_apart(!x)) b();` a's code follows what is before it,
// and so is there when the instruction cache is cold.
__device__ __forceinline__ bool compiled_apart(bool condition) {
  int x = condition;
  asm volatile("" : "+r"(x));
  return x != 0;
}

}  // namespace xgemm::cuda
