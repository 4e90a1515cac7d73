// GEMM for sm_90a that streams one wide operand: few rows (or columns), or too few tiles for the
// GPU.
//
// A cluster takes a tile, and its CTAs split K. In a CTA one warp feeds a pipeline of stages by TMA
// and never waits for anything but a free stage; warpgroups of 64 rows of W each multiply and then
// reduce over the cluster (cluster_reduction.cuh), while the pipeline already fills for the next
// tile.
#pragma once

#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/skinny/cluster_reduction.cuh"
#include "cuda/gemm/sm90/skinny/params.h"
#include "cuda/gemm/sm90/skinny/pipeline.cuh"
#include "cuda/gemm/sm90/skinny/schedule.cuh"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::sm90::skinny {

// acc (+)= the 64 rows of W at `wide` times X at `narrow`, a stage of them; both are descriptors of
// the first box.
template <typename T, typename Tile, bool kWideMn, bool kNarrowMn>
__device__ inline void multiply_stage(float (&acc)[Tile::kColumns / 2], uint64_t wide,
                                      uint64_t narrow, int wide_box_bytes, bool accumulate) {
  ptx::wgmma_fence();
#pragma unroll
  for (int box = 0; box < Tile::kBoxes; ++box) {
#pragma unroll
    for (int k16 = 0; k16 < kSwizzleElements / 16; ++k16) {
      ptx::wgmma<T, kWideMn, kNarrowMn>(
          acc, wide + box * (wide_box_bytes / 16) + k16 * kDescriptorStepK16<kWideMn>,
          narrow + box * (Pipeline<Tile>::kNarrowBoxBytes / 16) +
              k16 * kDescriptorStepK16<kNarrowMn>,
          accumulate || box > 0 || k16 > 0);
    }
  }
  ptx::wgmma_commit_group();
}

// Until all barriers of the cluster stand, or of the CTA if it is alone. Its warps come here from
// two places, and what barrier.cluster is without a cluster, __syncthreads, is one place's barrier.
template <typename Tile>
__device__ inline void wait_for_barriers(const Params& params) {
  constexpr int kBarrier = 1;
  if (params.splits > 1) {
    ptx::cluster_wait();
  } else {
    ptx::named_barrier_sync_apart(kBarrier, Tile::kThreads);
  }
}

template <typename T, typename Tile, bool kWideMn, bool kNarrowMn>
__device__ inline void consume(const Params& params, const Pipeline<Tile>& pipeline,
                               Control<T, Tile>& control, int rank, int warpgroup, int thread) {
  TileScheduler<Tile::kColumns> scheduler(params);
  DynamicPipelineState at{params.stages};
  // From lane 0, so that the compiler knows it to be the same for the whole warp.
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  ClusterReduction<T, Tile::kColumns> reduction(
      params, control.inbox(warpgroup, params.splits), control.staging[warpgroup * 4 + warp],
      &control.received[warpgroup], &control.drained[warpgroup], rank, warp, thread % 32);
  const int share = share_of_k<Tile::kStageK>(params, rank).count;
  const auto release = [&](int stage) {
    if (thread == 0) ptx::mbarrier_arrive(&control.empty[stage]);
  };
  const uint64_t wide =
      operand_descriptor<kWideMn>(pipeline.wide(0, 0), warpgroup * kWarpgroupRows);
  const uint64_t narrow = operand_descriptor<kNarrowMn>(pipeline.narrow(0, 0), 0);
  float acc[Tile::kColumns / 2];
  ptx::griddep_wait();  // the bias may be what the kernel before writes, or D what it reads
  wait_for_barriers<Tile>(params);
  while (!scheduler.done()) {
    const TilePosition tile = scheduler.next();
    if (share == 0) {
#pragma unroll
      for (float& x : acc) x = 0.0f;
    }
    int previous = 0;
#pragma unroll 1
    for (int step = 0; step < share; ++step) {
      ptx::mbarrier_wait(&control.full[at.stage], at.parity);
      const int offset = at.stage * pipeline.stage_bytes() / 16;
      multiply_stage<T, Tile, kWideMn, kNarrowMn>(acc, wide + offset, narrow + offset,
                                                  pipeline.wide_box_bytes(), step > 0);
      if (step > 0) {
        ptx::wgmma_wait_group<1>();  // the previous stage has been read
        release(previous);
      }
      previous = at.stage;
      at.advance();
    }
    ptx::wgmma_wait_group<0>();
    if (share > 0) release(previous);
    reduction.reduce(acc,
                     {tile.wide + warpgroup * kWarpgroupRows,
                      min(tile.wide + params.rows, params.wide_extent), tile.narrow, tile.batch},
                     scheduler.done());
  }
}

// By one thread: the barriers that others send to, or that those who multiply arrive at. The
// producer sets up its own.
template <typename T, typename Tile>
__device__ inline void set_up(const Params& params, Control<T, Tile>& control) {
#pragma unroll
  for (int i = 0; i < Tile::kWarpgroups; ++i) {
    ptx::mbarrier_init(&control.received[i], 1);
    // Of every warp of the cluster that finishes something.
    const bool columns = finishes_columns(Tile::kColumns, params.splits);
    const int finishers = columns ? 4 * params.splits : max(params.splits, 4);
    ptx::mbarrier_init(&control.drained[i], finishers);
  }
#pragma unroll 1
  for (int stage = 0; stage < params.stages; ++stage) {
    ptx::mbarrier_init(&control.empty[stage], Tile::kWarpgroups);
  }
  ptx::fence_mbarrier_init();
}

template <typename T, typename Tile, bool kWideMn, bool kNarrowMn>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    skinny_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(
      sizeof(Control<T, Tile>) + 1024 <= beside_pipeline_bytes(Tile::kRows, Tile::kColumns, 1),
      "the host must ask for all of it");
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  const Pipeline<Tile> pipeline{params.rows, params.stages,
                                raw + (1024 - ptx::smem_address(raw) % 1024) % 1024};
  auto& control = *reinterpret_cast<Control<T, Tile>*>(pipeline.end());
  // From lane 0, so that the compiler knows it to be the same for the whole warp.
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  const int thread = threadIdx.x % kWarpgroup;
  const int rank = static_cast<int>(ptx::cluster_cta_rank());
  const bool is_producer = warpgroup == Tile::kWarpgroups;
  // The first loads wait for nothing but their own barriers; what others send to, or wait for,
  // stands once the whole cluster has arrived.
  if (is_producer) [[likely]] {  // its code comes first: the way to the loads is to be short
    Producer<T, Tile, kWideMn, kNarrowMn> producer(params, pipeline, control, rank);
    ptx::griddep_wait();
    const bool elected = ptx::elect_one();
    if (elected) producer.start();
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    ptx::griddep_launch_dependents();
    if (elected) producer.fill();
    __syncwarp();
    wait_for_barriers<Tile>(params);
    if (ptx::elect_one()) producer.stream();
  } else {
    if (threadIdx.x < 32 && ptx::elect_one()) set_up(params, control);
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    ptx::griddep_launch_dependents();
    consume<T, Tile, kWideMn, kNarrowMn>(params, pipeline, control, rank, warpgroup, thread);
  }
  // No barrier at the end: whatever others send to this CTA, it has waited for
  // (cluster_reduction.cuh).
#endif
}

}  // namespace xgemm::cuda::gemm::sm90::skinny
