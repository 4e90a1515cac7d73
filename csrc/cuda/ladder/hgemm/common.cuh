// What the hgemm rungs share: the matrices, and 16 bytes at a time.
#pragma once

#include <cuda_fp16.h>

#include "cuda/ladder/api.h"
#include "cuda/launch.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::ladder::hgemm {

// The matrices as a kernel sees them.
struct Matrices {
  const __half* a;  // [m, k]
  const __half* b;  // [k, n]
  __half* c;        // [m, n]
  int m, n, k;
};

inline Matrices matrices_of(const Product& product) {
  return {static_cast<const __half*>(product.a),
          static_cast<const __half*>(product.b),
          static_cast<__half*>(product.c),
          product.m,
          product.n,
          product.k};
}

// Eight elements; both addresses are multiples of 16 bytes.
__device__ inline void copy8(__half* to, const __half* from) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}

}  // namespace xgemm::cuda::ladder::hgemm
