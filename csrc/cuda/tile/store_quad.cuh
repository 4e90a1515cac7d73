// The end of an epilogue whose threads have four neighbouring columns of a row of D each: bias and
// activation in fp32, one rounding, the store.
#pragma once

#include <cstdint>

#include "common/activation.h"
#include "cuda/tile/convert.cuh"

namespace xgemm::cuda {

// Where the four go: `count` of them exist, `stride` elements apart; `vector`: they are contiguous
// and aligned.
template <typename T>
struct QuadOfD {
  T* to;
  int64_t stride, count;
  bool vector;
};

template <typename T>
__device__ __forceinline__ void store_quad(const QuadOfD<T>& d, const float (&x)[4]) {
  if (d.vector && d.count >= 4) {
    *reinterpret_cast<uint2*>(d.to) = make_uint2(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < d.count) d.to[i * d.stride] = round_to<T>(x[i]);
  }
}

// `bias`: of the first column, or null.
template <typename T>
__device__ __forceinline__ void finish_quad(const QuadOfD<T>& d, float (&x)[4], const T* bias,
                                            int64_t bias_stride, Activation activation) {
  if (bias != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < d.count) x[i] += static_cast<float>(bias[i * bias_stride]);
    }
  }
  if (activation != Activation::kNone) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = activate(activation, x[i]);
  }
  store_quad(d, x);
}

}  // namespace xgemm::cuda
