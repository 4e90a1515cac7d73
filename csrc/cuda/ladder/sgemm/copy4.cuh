// 16 bytes at a time: what all rungs from 3 on load and store by.
#pragma once

#include "cuda/ladder/api.h"
#include "cuda/launch.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::ladder::sgemm {

// Four floats; both addresses are multiples of 16.
__device__ inline void copy4(float* to, const float* from) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}

// The matrices as a kernel sees them; the grid knows m.
struct Matrices {
  const float* a;  // [m, k]
  const float* b;  // [k, n]
  float* c;        // [m, n]
  int n, k;
};

inline Matrices matrices_of(const Product& product) {
  return {static_cast<const float*>(product.a), static_cast<const float*>(product.b),
          static_cast<float*>(product.c), product.n, product.k};
}

}  // namespace xgemm::cuda::ladder::sgemm
