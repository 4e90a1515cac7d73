// Split-K's second launch: the parts of K that CTAs left in memory, added up.
//
// Partial sums are [parts, rows, partial_stride] in fp32, partial_stride a multiple of 4. A thread
// adds four neighbouring columns of a row (a quad), in the order of the parts: the same bits in
// every run.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace xgemm::cuda {

// Adds the parts of a quad, of which `first` is the first one's, `stride` floats apart. So many
// loads as kTogether are on their way at once.
template <int kTogether>
__device__ __forceinline__ void add_parts_of_quad(float (&sum)[4], const float* first,
                                                  int64_t stride, int parts) {
#pragma unroll kTogether
  for (int part = 0; part < parts; ++part) {
    const float4 x = *reinterpret_cast<const float4*>(first + part * stride);
    sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
  }
}

// use(i) for each quad that is this thread's: a grid's threads take them by turns.
template <int kThreads, typename Use>
__device__ __forceinline__ void for_each_quad(int64_t quads, Use use) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < quads;
       i += int64_t{gridDim.x} * kThreads) {
    use(i);
  }
}

// Blocks of such a grid.
template <int kThreads>
unsigned blocks_of_quads(int64_t quads) {
  constexpr int64_t kMaxBlocks = int64_t{1} << 16;
  return static_cast<unsigned>(min(ceil_div<int64_t>(quads, kThreads), kMaxBlocks));
}

}  // namespace xgemm::cuda
