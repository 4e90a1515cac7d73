// Stand-in for the CUDA toolkit's header: what csrc/cuda uses of it.
#pragma once

#include <cstdint>

#define XGEMM_VECTORS(TYPE, NAME, ALIGN2, ALIGN4)                             \
  struct alignas(ALIGN2) NAME##2 { TYPE x, y; };                              \
  struct NAME##3 { TYPE x, y, z; };                                           \
  struct alignas(ALIGN4) NAME##4 { TYPE x, y, z, w; };                        \
  inline NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }            \
  inline NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; } \
  inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }
XGEMM_VECTORS(int, int, 8, 16)
XGEMM_VECTORS(unsigned, uint, 8, 16)
XGEMM_VECTORS(float, float, 8, 16)
XGEMM_VECTORS(double, double, 16, 16)
XGEMM_VECTORS(unsigned long long, ulonglong, 16, 16)
#undef XGEMM_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
