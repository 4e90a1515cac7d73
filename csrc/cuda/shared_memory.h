// A block's shared memory, as kernels declare it: tests/emulator has its own version of this file.
#pragma once

// `name`: a TYPE& in static shared memory, which nothing constructs.
#define XGEMM_STATIC_SHARED(TYPE, name) __shared__ TYPE name

// `name`: a TYPE[], all of the dynamic shared memory.
#define XGEMM_DYNAMIC_SHARED(TYPE, name, ALIGNMENT) \
  extern __shared__ __align__(ALIGNMENT)            \
  TYPE name[]
