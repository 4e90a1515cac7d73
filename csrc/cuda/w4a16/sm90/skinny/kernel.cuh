// W4A16 for few rows of X: a stream over the packed weight.
//
// Persistent CTAs, 32 or 64 columns of D at a time. Each of the streaming warps has a part of K: it
// keeps a pipeline of its own filled with bulk copies and multiplies what has come by its channels
// of X, which lie in shared memory; reducer warps add up their sums. The CTAs of a cluster have a
// part of K each, so that X's part fits, is fetched once, and few tiles still keep all SMs busy.
#pragma once

#include "cuda/ptx/griddep.h"
#include "cuda/shared_memory.h"
#include "cuda/w4a16/sm90/skinny/reduce.cuh"
#include "cuda/w4a16/sm90/skinny/stream.cuh"

namespace xgemm::cuda::w4a16::sm90::skinny {

// Barriers but the pipelines'; for one thread.
__device__ inline void init_barriers(const Params& p, Barriers& barriers) {
#pragma unroll 1
  for (int i = 0; i < p.buffers; ++i) {
    ptx::mbarrier_init(&barriers.sums_full[i], ptx::group_arrivals(p.warps));
    ptx::mbarrier_init(&barriers.sums_empty[i], ptx::group_arrivals(p.reducers));
  }
  if (p.log2_cluster > 0) {
#pragma unroll 1
    for (int i = 0; i < 2 * p.reducers; ++i) {
      ptx::mbarrier_init(&barriers.inbox_full[i / 2][i % 2], 1);
      ptx::mbarrier_init(&barriers.inbox_empty[i / 2][i % 2],
                         ptx::group_arrivals(1 << p.log2_cluster));
    }
  }
  ptx::fence_mbarrier_init();
}

template <int kTiles, Format kFormat>
inline constexpr int kMaxThreads =
    (most_warps(kTiles, kFormat == Format::kFine) + kTiles * (kMmaRows / reducer_rows(kTiles))) *
    32;

// Of the whole CTA. Its warps come here from two places, and __syncthreads is one place's barrier.
__device__ inline void wait_for_barriers() {
  constexpr int kBarrier = 1;
  ptx::named_barrier_sync_apart(kBarrier, static_cast<int>(blockDim.x));
}

template <typename T, int kTiles, Format kFormat, int kStrips>
__global__ void __launch_bounds__(kMaxThreads<kTiles, kFormat>, 1)
    skinny_kernel(const __grid_constant__ Params p) {
  XGEMM_DYNAMIC_SHARED(uint8_t, smem, 128);
  // By a shuffle, which tells the compiler that a warp has one value of it.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Barriers& barriers = *reinterpret_cast<Barriers*>(smem);
  const Cta cta(p);
  const Share share(p, cta, warp);
  // What a warp waits for most is asked for first, by the first instructions: a CTA starts with an
  // empty cache of them.
  if (warp < p.warps) ask_early<kTiles, kFormat, kStrips>(p, cta, share, smem, warp, lane);
  if (warp < p.warps) {
    Stream<T, kTiles, kFormat, kStrips> stream(p, cta, share, smem, warp, lane);
    stream.start();
    wait_for_barriers();
    ptx::griddep_launch_dependents();  // after the wait: what is older than this kernel has ended
    if (p.log2_cluster > 0) ptx::cluster_barrier_begin();
    stream.run();
    if (p.log2_cluster > 0) ptx::cluster_barrier_end();
  } else {
    if (warp == p.warps) {
      if (p.rows > 1) prefetch(p, cta, lane);  // 1 % slower with one row
      if (lane == 0) init_barriers(p, barriers);
    }
    ptx::griddep_wait();
    wait_for_barriers();
    ptx::griddep_launch_dependents();
    if (p.log2_cluster > 0) {
      ptx::cluster_barrier_begin();
      ptx::cluster_barrier_end();  // all inboxes stand
    }
    Reducer<T, reducer_rows(kTiles), kStrips, kFormat == Format::kOneGroup>(p, cta, smem,
                                                                            warp - p.warps, lane)
        .run();
  }
}

}  // namespace xgemm::cuda::w4a16::sm90::skinny
