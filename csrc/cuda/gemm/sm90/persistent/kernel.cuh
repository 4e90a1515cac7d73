// Dense GEMM for sm_90a: TMA into a pipeline of shared-memory stages, wgmma out of it.
//
// Persistent CTAs of one producer warpgroup and two consumer warpgroups, which split the tile's
// rows. A cluster of two CTAs takes two tiles of the same columns and shares B by multicast, or one
// tile and shares K. The stores of a tile run under the wgmmas of the next one.
#pragma once

#include "common/math.h"
#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/persistent/cluster_reduction.cuh"
#include "cuda/gemm/sm90/persistent/epilogue.cuh"
#include "cuda/gemm/sm90/persistent/schedule.cuh"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/l2_policy.h"
#include "cuda/ptx/setmaxnreg.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/compiled_apart.cuh"
#include "cuda/tile/pipeline_state.cuh"

namespace xgemm::cuda::gemm::sm90::persistent {

// What the kernel is compiled for.
template <int kBlockN_, int kStages_>
struct TileConfig {
  static constexpr int kBlockN = kBlockN_, kStages = kStages_;
  static_assert(kBlockN <= kStages * 64, "the last tile is staged where A was");
};

template <typename T, typename Config>
struct SharedStorage {
  alignas(1024) T a[Config::kStages][kBlockM * kBlockK];
  alignas(1024) T b[Config::kStages][Config::kBlockN * kBlockK];
  alignas(1024) typename Epilogue<T, Config::kBlockN>::Staging d[kConsumers];
  uint64_t full[Config::kStages], empty[Config::kStages];
  uint64_t ready[kConsumers], received[kConsumers];  // of halves of K
};

template <typename T, typename Config>
inline constexpr int kSmemBytes = sizeof(SharedStorage<T, Config>) + 1024;  // + alignment

// The barriers that the first loads do not need.
template <typename T, typename Config>
__device__ inline void init_other_barriers(const Params& params, SharedStorage<T, Config>& smem) {
  for (uint64_t& empty : smem.empty) {
    ptx::mbarrier_init(&empty, kConsumers * (params.shares_b ? kPair : 1));
  }
  for (int i = 0; i < kConsumers; ++i) {
    ptx::mbarrier_init(&smem.ready[i], 1);
    ptx::mbarrier_init(&smem.received[i], 1);
  }
  ptx::fence_mbarrier_init();
}

// One thread that keeps the pipeline full.
template <typename T, typename Config, bool kAMn, bool kBMn>
class Producer {
 public:
  __device__ Producer(const Params& params, SharedStorage<T, Config>& smem, int cta_rank)
      : params_(params), smem_(smem), scheduler_(params, cta_rank), cta_rank_(cta_rank) {}

  // The first loads, before the CTA's threads have met. The other CTAs of the cluster may not be
  // there yet: each gets all of B for these stages itself, by shares, as the map's box is one.
  __device__ void start() {
    for (uint64_t& full : smem_.full) ptx::mbarrier_init(&full, 1);
    ptx::fence_mbarrier_init();
    if (!scheduler_.next(&tile_)) return;
    ptx::griddep_wait();
    first_ = min(kFirst, tile_.count);
    for (int stage = 0; stage < first_; ++stage) {
      load_a(tile_.first + stage, stage);
      load_whole_b(tile_.first + stage, stage);
    }
  }

  // The rest, once the barriers of all CTAs of the cluster stand.
  __device__ void run() {
    if (first_ == 0) return;
    pipeline_.stage = first_;
    ptx::mbarrier_wait(&smem_.full[0], 0);
    int step = first_;
    do {
      for (; step < tile_.count; ++step, pipeline_.advance()) {
        ptx::mbarrier_wait(&smem_.empty[pipeline_.stage], pipeline_.parity ^ 1);
        load_a(tile_.first + step, pipeline_.stage);
        load_b(tile_.first + step, pipeline_.stage);
      }
      step = 0;
    } while (scheduler_.next(&tile_));
  }

 private:
  // Stages that are asked for before the first has come: were it all of them, every SM's first
  // stage would wait behind the others' later ones (a microsecond of a cold start). Two narrow ones
  // are used up before the next are there.
  static constexpr int kFirst = Config::kBlockN == 128 ? 4 : 2;

  __device__ void load_a(int k_tile, int stage) {
    constexpr uint32_t kBytes = (kBlockM + Config::kBlockN) * kBlockK * sizeof(T);
    ptx::mbarrier_arrive_expect_tx(&smem_.full[stage], kBytes);
    if (params_.a_shifted && k_tile > 0) [[unlikely]] {
      load_operand<kBlockM, kAMn, 1>(smem_.a[stage], &params_.a_of[tile_.batch.inner], false,
                                     &smem_.full[stage], policy(params_.a_evict_first), tile_.m,
                                     k_tile * kBlockK, {0, 0}, 0);
      return;
    }
    load_operand<kBlockM, kAMn, 1>(smem_.a[stage], &params_.a, params_.a_chunked,
                                   &smem_.full[stage], policy(params_.a_evict_first), tile_.m,
                                   k_tile * kBlockK, position(params_.a_batched), 0);
  }

  __device__ void load_b(int k_tile, int stage) {
    if (params_.shares_b) {
      load_share_of_b<kPair, true>(k_tile, stage, cta_rank_);
    } else {
      load_share_of_b<1, false>(k_tile, stage, 0);
    }
  }

  // By the boxes that the map has: a pair's are shares.
  __device__ void load_whole_b(int k_tile, int stage) {
    if constexpr (kBMn) {
      if (!params_.shares_b) {
        load_share_of_b<1, false>(k_tile, stage, 0);
        return;
      }
    }
    const int shares = params_.shares_b ? kPair : 1;
#pragma unroll 1
    for (int share = 0; share < shares; ++share)
      load_share_of_b<kPair, false>(k_tile, stage, share);
  }

  template <int kSharers, bool kToAll>
  __device__ void load_share_of_b(int k_tile, int stage, int share) {
    load_operand<Config::kBlockN, kBMn, kSharers, kToAll>(
        smem_.b[stage], &params_.b, params_.b_chunked, &smem_.full[stage],
        policy(params_.b_evict_first), tile_.n, k_tile * kBlockK - shift(),
        position(params_.b_batched), share);
  }

  static __device__ uint64_t policy(bool evict_first) {
    return evict_first ? ptx::kEvictFirst : ptx::kEvictNormal;
  }

  // Of A's rows, 0 where they are read as they lie.
  __device__ int shift() const {
    if (!params_.a_shifted) return 0;
    return (params_.a_shift + tile_.batch.inner * params_.a_shift_step) % kVector;
  }

  __device__ BatchPosition position(const bool (&batched)[2]) const {
    if (!params_.batched) return {0, 0};
    return {batched[0] ? tile_.batch.inner : 0, batched[1] ? tile_.batch.outer : 0};
  }

  const Params& params_;
  SharedStorage<T, Config>& smem_;
  Scheduler<Config> scheduler_;
  PipelineState<Config::kStages> pipeline_;
  Segment tile_;
  int cta_rank_, first_ = 0;
};

template <typename T, typename Config, bool kAMn, bool kBMn>
class Consumer {
 public:
  // `steps`: k-tiles that this warpgroup will see, over all tiles.
  __device__ Consumer(SharedStorage<T, Config>& smem, int consumer, int thread, int64_t steps,
                      bool multicast)
      : smem_(smem),
        thread_(thread),
        multicast_(multicast),
        releases_(steps - Config::kStages),
        a_base_(operand_descriptor<kAMn>(smem.a[0], consumer * 64)),
        b_base_(operand_descriptor<kBMn>(smem.b[0], 0)) {}

  // acc = A B over `k_tiles`. Between the first of them, while the tensor cores have work, the tile
  // before is stored.
  template <typename Epilogue>
  __device__ void accumulate(float (&acc)[Config::kBlockN / 2], int k_tiles, Epilogue& epilogue) {
    // From lane 0, so that the compiler knows them to be the same for the whole warp: else it keeps
    // the descriptors of wgmma in each thread's registers, and moves them before each.
    k_tiles = __shfl_sync(~0u, k_tiles, 0);
    pipeline_.stage = __shfl_sync(~0u, pipeline_.stage, 0);
    pipeline_.parity = __shfl_sync(~0u, pipeline_.parity, 0);
    int k_tile = 0;
    if (epilogue.pending()) {
      store_under_steps<0>(acc, k_tiles, epilogue);
      epilogue.stored();
      k_tile = Epilogue::kBoxes;
    }
#pragma unroll 1  // what is short is fetched fast when the instruction cache is cold
    for (; k_tile < k_tiles; ++k_tile) step(acc, k_tile > 0);
    ptx::wgmma_wait_group<0>();
    release(previous_);
  }

 private:
  template <int kBox, typename Epilogue>
  __device__ void store_under_steps(float (&acc)[Config::kBlockN / 2], int k_tiles,
                                    Epilogue& epilogue) {
    if constexpr (kBox < Epilogue::kBoxes) {
      if (kBox < k_tiles) step(acc, kBox > 0);
      epilogue.template store<kBox>();
      store_under_steps<kBox + 1>(acc, k_tiles, epilogue);
    }
  }

  // Issues the wgmmas of the next stage, and gives the stage before back once it has been read.
  __device__ void step(float (&acc)[Config::kBlockN / 2], bool accumulate) {
    ptx::mbarrier_wait(&smem_.full[pipeline_.stage], pipeline_.parity);
    ptx::wgmma_fence();
    const uint64_t a = a_base_ + pipeline_.stage * static_cast<int>(sizeof(smem_.a[0]) / 16);
    const uint64_t b = b_base_ + pipeline_.stage * static_cast<int>(sizeof(smem_.b[0]) / 16);
#pragma unroll
    for (int k16 = 0; k16 < kBlockK / 16; ++k16) {
      ptx::wgmma<T, kAMn, kBMn>(acc, a + k16 * kDescriptorStepK16<kAMn>,
                                b + k16 * kDescriptorStepK16<kBMn>, accumulate || k16 > 0);
    }
    ptx::wgmma_commit_group();
    if (accumulate) {
      ptx::wgmma_wait_group<1>();
      release(previous_);
    }
    previous_ = pipeline_.stage;
    pipeline_.advance();
  }

  // Every CTA that sends to this one, itself included, must know that the stage has been read; but
  // not of the last stages, into which nothing more is loaded: the other CTA may be gone by then.
  __device__ void release(int stage) {
    if (--releases_ < 0) return;
    if (multicast_) {
      if (thread_ < kPair) ptx::mbarrier_arrive_cluster(&smem_.empty[stage], thread_);
    } else {
      if (thread_ == 0) ptx::mbarrier_arrive(&smem_.empty[stage]);
    }
  }

  SharedStorage<T, Config>& smem_;
  int thread_;
  bool multicast_;
  int64_t releases_;  // still to come
  uint64_t a_base_, b_base_;
  PipelineState<Config::kStages> pipeline_;
  int previous_ = 0;
};

// What most tiles do without: the sums of the other half of K, bias and activation.
template <typename T, typename Config>
__device__ __forceinline__ void finish_sums(const Params& params,
                                            const ClusterReduction<T, Config>& reduction,
                                            const Epilogue<T, Config::kBlockN>& epilogue,
                                            const Segment& segment,
                                            float (&acc)[Config::kBlockN / 2], int index) {
  if (__any_sync(~0u, segment.count < params.k_tiles)) reduction.add_up(acc);
  epilogue.finish(acc, segment.m + index * 64, segment.n);
}

template <typename T, typename Config, bool kAMn, bool kBMn>
__device__ inline void consume(const Params& params, SharedStorage<T, Config>& smem, int cta_rank,
                               int index, int thread) {
  Scheduler<Config> scheduler(params, cta_rank);
  Consumer<T, Config, kAMn, kBMn> consumer(smem, index, thread, scheduler.steps(), params.shares_b);
  Epilogue<T, Config::kBlockN> epilogue(params, smem.d[index], index, thread);
  // This warpgroup's half of every stage of A is its own.
  T* a = smem.a[0] + index * 64 * kBlockK;
  ClusterReduction<T, Config> reduction(a, &smem.ready[index], &smem.received[index], cta_rank,
                                        index, thread);
  float acc[Config::kBlockN / 2];
  Segment segment{};
  ptx::griddep_wait();  // the bias may be what the kernel before writes, or D what it reads
  // Votes: the compiler must see that a warp stays together, or the k loop has no uniform registers
  // (see accumulate).
  bool more = __any_sync(~0u, scheduler.next(&segment));
  while (more) {
    consumer.accumulate(acc, segment.count, epilogue);
    // The code of most tiles is in front of finish_sums(), and so is there when the instruction
    // cache is cold: other tiles come to it in a second turn.
    bool finished = __any_sync(~0u, params.plain_end && segment.count == params.k_tiles), apart;
    do {
      if (finished) {
        epilogue.take(acc, segment.m + index * 64, segment.n, segment.batch);
        // (A last segment stays as it is.)
        more = __any_sync(~0u, scheduler.next(&segment));
        if (!more) {
          // No load follows: there is room where A was.
          const bool half = segment.count < params.k_tiles;
          epilogue.template store_all<kBlockM * kBlockK>(
              a, half ? reduction.first_box() : 0, half ? reduction.end_box() : reduction.kBoxes);
        }
      }
      apart = compiled_apart(!finished);
      if (apart) {
        finish_sums(params, reduction, epilogue, segment, acc, index);
        finished = true;
      }
    } while (apart);
  }
}

template <typename T, typename Config, bool kAMn, bool kBMn>
__global__ void __launch_bounds__(kThreads, 1) gemm_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem = *reinterpret_cast<SharedStorage<T, Config>*>(
      raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  // From lane 0, so that the compiler knows it to be the same for the whole warp.
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  const int cta_rank = params.pair ? static_cast<int>(ptx::cluster_cta_rank()) : 0;
  // From a cold cache every line of instructions and of parameters that is read before the first
  // loads delays them, whichever warp reads it. So these come first, and the other warps wait, but
  // for one that has fetched what the loads need next.
  Producer<T, Config, kAMn, kBMn> producer(params, smem, cta_rank);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp == kWarpgroup / 32 && ptx::elect_one()) {
    ptx::prefetch_tensormap(&params.a);
    ptx::prefetch_tensormap(&params.b);
  }
  if (warp == 0 && ptx::elect_one()) {
    producer.start();
    init_other_barriers(params, smem);
  }
  __syncwarp();
  if (params.pair) [[unlikely]] {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<40>();
    if (warp == 0 && ptx::elect_one()) producer.run();
  } else {
    ptx::setmaxnreg_inc<232>();
    ptx::griddep_launch_dependents();
    consume<T, Config, kAMn, kBMn>(params, smem, cta_rank, warpgroup - 1, threadIdx.x % kWarpgroup);
  }
#endif
}

}  // namespace xgemm::cuda::gemm::sm90::persistent
