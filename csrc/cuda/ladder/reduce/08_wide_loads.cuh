// Ladder reduce, rung 8: 16-byte loads, eight of them under way.
//
// Source:    ours: what the product's kernel does (csrc/cuda/reduce), without everything else.
// Changed:   a thread loads float4, and issues eight loads before it uses the first.
// Published: nothing.
//
// A load of 16 bytes a lane is one instruction for 512 bytes of a warp. Eight of them before the
// first addition keep 128 bytes a thread in flight, so half as many blocks fill the memory's
// pipeline. `#pragma unroll` on two loops, one that loads and one that adds, is how to ask the
// compiler for that: it keeps the eight values in 32 registers. The loads say that L1 need not keep
// what they bring, which is read once. Two blocks of 512 threads on an SM leave half as many
// partial sums to the second launch as four of 256.
//
// The additions are in another order than on rung 7, so the last bits of the sum may differ.
#pragma once

#include "cuda/ladder/reduce/finish.cuh"
#include "cuda/ptx/ld_st.h"

namespace xgemm::cuda::ladder::reduce::rung8 {

inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kLoads = 8;  // of 16 bytes, which a thread has under way
// Elements that a block adds at a time: 4 for each load.
inline constexpr int kTile = 4 * kLoads * kThreads;
inline constexpr int kBlocksPerSm = 2;
__global__ void sum_kernel(const float* x, int64_t count, float* partials) {
  using WarpSums = float[kWarps];
  XGEMM_STATIC_SHARED(WarpSums, warp_sums);
  const unsigned tid = threadIdx.x;
  float sum = 0.0f;
  for (int64_t tile = blockIdx.x; tile < count / kTile; tile += gridDim.x) {
    float4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint4 bits = ptx::ld_global_nc_no_allocate(x + tile * kTile + 4 * (i * kThreads + tid));
      loaded[i] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                   __uint_as_float(bits.w)};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      sum += (loaded[i].x + loaded[i].y) + (loaded[i].z + loaded[i].w);
    }
  }

  sum = add_warp(sum);
  if (tid % 32 == 0) warp_sums[tid / 32] = sum;
  __syncthreads();
  if (tid == 0) {
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) sum += warp_sums[warp];
    partials[blockIdx.x] = sum;
  }
}

inline Status run(const Sum& sum) {
  const int64_t most = sum.count / kTile, wanted = int64_t{sum.sm_count} * kBlocksPerSm;
  const auto blocks = static_cast<unsigned>(most < wanted ? most : wanted);
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = sum.stream};
  const Status status =
      launch_grid("ladder reduce: rung 8", grid, sum_kernel, sum.x, sum.count, sum.partials);
  return status.ok() ? finish(sum, static_cast<int>(blocks)) : status;
}

}  // namespace xgemm::cuda::ladder::reduce::rung8
