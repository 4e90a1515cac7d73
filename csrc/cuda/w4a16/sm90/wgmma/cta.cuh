// A CTA of any tile: its warps' parts, and in which order they begin.
#pragma once

#include "cuda/ptx/griddep.h"
#include "cuda/ptx/setmaxnreg.h"
#include "cuda/shared_memory.h"
#include "cuda/w4a16/sm90/wgmma/epilogue.cuh"
#include "cuda/w4a16/sm90/wgmma/loaders.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// Of even shares: only the first segment of a range may begin within a tile, whose sums are left
// for others, and only the last end within one.
//
// Raises the flags of all warpgroups: this waits until all SMs can see their sums, once, and they
// go on meanwhile.
template <typename Config>
__device__ inline void raise_flags(const Params& params, Place place, int lane) {
  Scheduler scheduler(params, place, Config::kRows);
  Segment segment;
  if (!scheduler.next(&segment) || segment.first == 0) return;
#pragma unroll 1
  for (int i = 0; i < Config::kConsumers; ++i) {
    ptx::named_barrier_sync(kLeftBarrier + i, kWarpgroup + 32);
  }
  const int64_t first = warpgroup_of<Config>(params, place, scheduler.cluster(), 0);
  if (lane < Config::kConsumers) ptx::st_release_gpu(params.flags + first + lane, params.nonce);
}

// Waits for others' flags while the warpgroups are still at work.
template <typename Config>
__device__ inline void find_flags(const Params& params, Place place, int lane) {
  Scheduler scheduler(params, place, Config::kRows);
  Segment segment{};
  while (scheduler.next(&segment)) {
  }
  const uint32_t cluster = scheduler.cluster();
  if (segment.first > 0) return;
  const int flags = parts_behind(params, segment, cluster) * Config::kConsumers;
  if (flags == 0) return;
  ptx::griddep_wait();  // the workspace may be another kernel's until then
#pragma unroll 1
  for (int i = lane; i < flags; i += 32) {
    const int64_t of = warpgroup_of<Config>(params, place, cluster - 1 - i / Config::kConsumers,
                                            i % Config::kConsumers);
    take_down_flag(params.flags + of, params.nonce);
  }
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < Config::kConsumers; ++i) {
    ptx::named_barrier_arrive(kFoundBarrier + i, kWarpgroup + 32);
  }
}

// At this barrier the warp that loads W, which goes on before all barriers of shared memory stand,
// waits for them.
inline constexpr int kSetUpBarrier = 7;

// A CTA: sets up, loads, and has consume(smem, place, warpgroup, thread) called by the threads that
// multiply. Activations: the class that loads X into a Storage.
template <typename Config, typename Storage, typename Activations, typename Consume>
__device__ __forceinline__ void run_cta(const Params& params, Consume consume) {
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem = *reinterpret_cast<Storage*>(raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  // From lane 0, so that the compiler knows it to be the same for the whole warp.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), warpgroup = warp / 4;
  const int thread = threadIdx.x % kWarpgroup;
  const bool cluster = params.sharers_shift + params.split_shift > 0;
  const int rank = cluster ? static_cast<int>(ptx::cluster_cta_rank()) : 0;
  const Place place{rank & (params.sharers - 1), rank >> params.sharers_shift};
  // What is waited for longest is asked for by the first instructions, before any branch: a CTA
  // starts with an empty cache of them, and a jump waits for memory. One warp sets up the barriers
  // that it needs and asks for W at once; nobody else has to see more than that all barriers stand.
  if (warp == 1 && ptx::elect_one()) ptx::prefetch_tensormap(&params.x);
  Walk<Config> walk(params, place);
  if (warp == 0) {
    if (ptx::elect_one()) set_up_full_barriers(smem);
    __syncwarp();
    ptx::named_barrier_arrive(0, Config::kThreads);
    Weights<Config, Storage>(params, smem, walk).start();
  }
  if (warp == 3) {
    if (ptx::elect_one()) set_up_other_barriers(params, smem);
    __syncwarp();
    ptx::named_barrier_arrive(kSetUpBarrier, 2 * 32);
  }
  if (warp != 0) ptx::named_barrier_sync(0, Config::kThreads);
  if (warp == 1 && params.sharers_shift == 0) {
    ptx::griddep_wait();  // the weights do not depend on what ran before, X does
    Activations(params, smem, walk).start();
  }
  ptx::griddep_launch_dependents();
  if (cluster) ptx::cluster_barrier_begin();
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if (warp == 0) {
      ptx::named_barrier_sync(kSetUpBarrier, 2 * 32);  // it has not waited at barrier 0
      Weights<Config, Storage>(params, smem, walk).run();
    } else if (warp == 1) {
      if (params.sharers_shift > 0) {  // X is sent to others, too, whose barriers must stand
        ptx::cluster_barrier_end();
        ptx::griddep_wait();
        Activations(params, smem, walk).start();
      }
      Activations(params, smem, walk).run();
    } else if (warp == 2) {
      if (params.stream_k) raise_flags<Config>(params, place, thread % 32);
    } else if (params.stream_k) {
      find_flags<Config>(params, place, thread % 32);
    }
    if (cluster && !(warp == 1 && params.sharers_shift > 0)) ptx::cluster_barrier_end();
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    if (cluster) ptx::cluster_barrier_end();  // others' barriers stand, too
    ptx::griddep_wait();
    consume(smem, place, warpgroup - 1, thread);
  }
  // No barrier at the end: whatever others send to this CTA, it has waited for.
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
