// W4A16 for few rows of X: a stream over the packed weight.
//
// Persistent CTAs, 32 columns of D at a time. Each of the streaming warps keeps a ring of its own
// filled with bulk copies and multiplies what has come by X, which lies in shared memory; reducer
// warps add up their sums. The CTAs of a cluster have a part of K each, so that X's part fits, is
// fetched once, and few tiles still keep all SMs busy.
#pragma once

#include "cuda/ptx/griddep.h"
#include "cuda/shared_memory.h"
#include "cuda/w4a16/sm90/rows/reduce.cuh"
#include "cuda/w4a16/sm90/rows/stream.cuh"

namespace xgemm::cuda::w4a16::sm90::rows {

// Barriers but the rings' and X's; for one thread.
__device__ inline void init_barriers(const Params& p, const Cta& cta, Barriers& barriers,
                                     int reducers) {
#pragma unroll 1
  for (int i = 0; i < p.buffers; ++i) {
    ptx::mbarrier_init(&barriers.sums_full[i], p.parts(cta.units));
    ptx::mbarrier_init(&barriers.sums_empty[i], reducers);
  }
  if (p.log2_cluster > 0) {
#pragma unroll 1
    for (int i = 0; i < 2 * reducers; ++i) {
      ptx::mbarrier_init(&barriers.inbox_full[i / 2][i % 2], 1);
      ptx::mbarrier_init(&barriers.inbox_empty[i / 2][i % 2], 1 << p.log2_cluster);
    }
  }
  ptx::fence_mbarrier_init();
}

template <typename T, int kTiles, bool kFine>
__global__ void __launch_bounds__((most_warps(kTiles) + kTiles) * 32, 1)
    rows_kernel(const __grid_constant__ Params p) {
  XGEMM_DYNAMIC_SHARED(uint8_t, smem, 128);
  const Cta cta(p);
  // By a shuffle, which tells the compiler that a warp has one value of it.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int reducer = warp - p.warps;  // or negative
  Barriers& barriers = *reinterpret_cast<Barriers*>(smem);
  uint8_t* x = smem + p.shared.x;
  Stream<T, kTiles, kFine> stream(p, cta, smem, warp, lane);
  if (reducer < 0) stream.start();
  if (warp == 0 && lane == 0) init_barriers(p, cta, barriers, kTiles);
  ptx::griddep_wait();  // what is read from here on may be new
  if (reducer == 0 && p.x_bulk) copy_x(p, cta, x, &barriers.x, lane);
  gather_x(p, cta, x, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  __syncthreads();
  ptx::griddep_launch_dependents();
  if (p.log2_cluster > 0) ptx::cluster_arrive_relaxed();
  if (reducer < 0) {
    stream.run();
  } else {
    if (p.log2_cluster > 0) ptx::cluster_wait();  // all inboxes stand
    Reducer<T>(p, cta, smem, reducer, lane).run();
  }
  if (p.log2_cluster > 0 && reducer < 0) ptx::cluster_wait();
}

}  // namespace xgemm::cuda::w4a16::sm90::rows
