// A cluster reduction's way through distributed shared memory: a thread sends accumulators to its
// namesake in another CTA, whose barrier counts their bytes, and adds what it gets to its own.
//
// Who finishes which part of a tile, and when an inbox is free again, is the kernel's: halves of
// the columns, of the rows, or slices of either, and one tile or many. The skinny W4A16 kernel has
// a reduction of its own (w4a16/sm90/skinny/reduce.cuh): its warps' sums are in shared memory
// already, and a warp that does nothing else adds them up.
#pragma once

#include <cstdint>

#include "cuda/ptx/st_async.h"
#include "cuda/tile/accumulators.cuh"

namespace xgemm::cuda {

// Sends quads kFirst to kEnd - 1. `to`: where the first goes, the others `stride` bytes apart;
// `signal`: the barrier; both are addresses of the other CTA (ptx::mapa).
template <int kFirst, int kEnd, int kSize>
__device__ __forceinline__ void send_quads(uint32_t to, int stride, uint32_t signal,
                                           const float (&acc)[kSize]) {
#pragma unroll
  for (int j = kFirst; j < kEnd; ++j) {
    const float* x = acc + 4 * j;
    ptx::st_async_v4(to + (j - kFirst) * stride, signal, x[0], x[1], x[2], x[3]);
  }
}

// Adds what another CTA sent to quads kFirst to kEnd - 1: `from`, and `stride` quads on.
template <int kFirst, int kEnd, int kSize>
__device__ __forceinline__ void add_received_quads(float (&acc)[kSize], const float4* from,
                                                   int stride) {
#pragma unroll
  for (int j = kFirst; j < kEnd; ++j) add_quad(acc, j, from[(j - kFirst) * stride]);
}

}  // namespace xgemm::cuda
