// csrc/cuda/shared_memory.h, emulated.
#pragma once

#include "emulator/engine.h"

#define XGEMM_STATIC_SHARED(TYPE, name)                                        \
  TYPE& name = *static_cast<TYPE*>([] {                                        \
    static const char kKey = 0;                                                \
    return xgemm::emulator::static_memory(&kKey, sizeof(TYPE), alignof(TYPE)); \
  }())

#define XGEMM_DYNAMIC_SHARED(TYPE, name, ALIGNMENT)                                        \
  static_assert((ALIGNMENT) <= 128, "dynamic shared memory is aligned to 128 bytes only"); \
  TYPE* name = reinterpret_cast<TYPE*>(xgemm::emulator::dynamic_memory())
