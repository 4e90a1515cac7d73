// Elements of D that neither TMA nor vectors can store.
#pragma once

#include <cstdint>

namespace xgemm::cuda::gemm::sm90 {

// A thread's part: every kStep-th of kExtent elements, which lie `stride` apart in D, and of which
// `count` exist. element(eight, i) is number eight * 8 + i; eight of them (by kStep) are loaded
// before the first is stored, so that the thread waits once.
template <int kExtent, int kStep, typename T, typename Element>
__device__ inline void store_line(T* d, int64_t stride, int count, Element element) {
#pragma unroll 1
  for (int eight = 0; eight < kExtent / 8; ++eight, d += 8 * stride, count -= 8) {
    T values[8 / kStep];
#pragma unroll
    for (int i = 0; i < 8; i += kStep) values[i / kStep] = element(eight, i);
#pragma unroll
    for (int i = 0; i < 8; i += kStep) {
      if (i < count) d[i * stride] = values[i / kStep];
    }
  }
}

}  // namespace xgemm::cuda::gemm::sm90
