// W4A16 for sm_90a from a few dozen rows of X on: Y^T = W X^T by wgmma, with W dequantized in
// registers as its A operand.
//
// Persistent CTAs of one producer warpgroup, of which a thread feeds a ring of packed units of W
// and another one of boxes of X, and of two or four consumer warpgroups of 64 columns of D each. A
// consumer turns 64 k of codes into operands while the wgmmas of the 64 k before run, its own or
// the other warpgroups'. A cluster shares X (multicast), or K (its CTAs exchange sums), or both. Or
// all clusters take equal ranges of the tiles' K, and complete each other's sums.
#pragma once

#include "cuda/ptx/griddep.h"
#include "cuda/ptx/setmaxnreg.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/shared_memory.h"
#include "cuda/w4a16/sm90/wgmma/dequant.cuh"
#include "cuda/w4a16/sm90/wgmma/epilogue.cuh"
#include "cuda/w4a16/sm90/wgmma/ring.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

template <typename T, typename Config, bool kForeign>
class Consumer {
  static constexpr int kRows = Config::kRows;
  static constexpr int kHalves = 2;  // of a unit: 64 k each, which is a stage of X
  // Steps of 16 k are multiplied in groups of kCommit. Up to kDepth groups are dequantized and not
  // yet multiplied.
  static constexpr int kCommit = Config::kCommit, kDepth = Config::kDepth;
  static constexpr int kGroupsOfHalf = 4 / kCommit, kGroups = kHalves * kGroupsOfHalf;
  static_assert(kGroups % kDepth == 0, "a group must have the same registers in every unit");

 public:
  // `units`: of K, that this warpgroup will see, over all tiles.
  __device__ Consumer(const Params& params, SharedStorage<Config>& smem, Place place, int consumer,
                      int thread, int64_t units)
      : params_(params),
        smem_(smem),
        place_(place),
        thread_(thread),
        codes_(smem.w[0][consumer] + thread / 32 * params.strip_bytes + thread % 32 * 16),
        scales_(smem.w[0][consumer] + thread / 32 * params.strip_bytes + w4::kStripCodeBytes +
                thread % 32 / 4 * 2),
        x_base_(ptx::wgmma_descriptor(smem.x[0], 16, 1024)),
        groups_(params.groups_per_unit),
        releases_(static_cast<int>(min(units * kHalves - Config::kXStages, int64_t{1} << 30))) {}

  // The scales of a tile whose columns have one group each.
  __device__ void begin(const Segment& segment, int consumer) {
    if (groups_ > 0) return;
    const int row = min(segment.column * Config::kConsumers + consumer, params_.weight_rows - 1);
    const int lane = thread_ % 32;
    dequantizer_.load_group({params_.weight + row * params_.row_bytes +
                                 static_cast<int64_t>(params_.units) * params_.unit_bytes +
                                 (thread_ / 32 * 16 + lane / 4) * 2,
                             kWarpgroupColumns * 2, params_.zeros});
  }

  // acc = W X^T over `units` units of K, one at least.
  __device__ void accumulate(float (&acc)[kRows / 2], int units) {
    uint32_t a[kDepth][kCommit][4];
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      ptx::mbarrier_wait(&smem_.w_full[w_.stage], w_.parity);
      uint32_t words[4];
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int half = group / kGroupsOfHalf, first = group % kGroupsOfHalf * kCommit;
        const int stage = x_.stage * kHalves + half;
        if (first == 0) begin_half(half, words);
        dequantize(half, first, words, a[group % kDepth]);
        if (group == kGroups - 1) release_weights();
        if (first == 0) ptx::mbarrier_wait(&smem_.x_full[stage], x_.parity);
        multiply(acc, x_base_ + stage * (Config::kXBytes / 16) + first * 2, a[group % kDepth],
                 unit > 0 || group > 0);
        release_multiplied(group, unit);
      }
      previous_ = x_.stage;
      x_.advance();
    }
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int group = kGroups - kDepth + 1; group < kGroups; ++group) {
      if (ends_half(group)) release(previous_ * kHalves + group / kGroupsOfHalf);
    }
  }

 private:
  static constexpr bool ends_half(int group) { return (group + 1) % kGroupsOfHalf == 0; }

  // The codes of 64 k, and the scales that they begin with: a unit has 0, 1, 2 or 4 groups of them.
  __device__ void begin_half(int half, uint32_t (&words)[4]) {
    const uint4 codes = *reinterpret_cast<const uint4*>(codes_ + half * 512);
    words[0] = codes.x, words[1] = codes.y, words[2] = codes.z, words[3] = codes.w;
    if (groups_ > half) load_group(half * groups_ / 2);
  }

  // Operands of kCommit steps of 16 k, of which `first` is the first in its half.
  __device__ void dequantize(int half, int first, const uint32_t (&words)[4],
                             uint32_t (&a)[kCommit][4]) {
    if (dequantizer_.subnormal()) {
#pragma unroll
      for (int j = 0; j < kCommit; ++j) dequantizer_.expand_subnormal(words[first + j], a[j]);
      return;
    }
#pragma unroll
    for (int j = 0; j < kCommit; ++j) {
      if (first + j == 2 && groups_ == 4) load_group(half * 2 + 1);
      dequantizer_.expand(words[first + j], a[j]);
    }
  }

  __device__ void load_group(int group) {
    dequantizer_.load_group({scales_ + group * 32, groups_ * 32, params_.zeros, groups_ == 4});
  }

  // The whole warp has read the unit.
  __device__ void release_weights() {
    __syncwarp();
    if (thread_ % 32 == 0) ptx::mbarrier_arrive(&smem_.w_empty[w_.stage]);
    const int step = w_.stage + 1 < Config::kWStages ? Config::kWBytes
                                                     : (1 - Config::kWStages) * Config::kWBytes;
    codes_ += step, scales_ += step;
    w_.advance();
  }

  // acc += A X, later.
  __device__ void multiply(float (&acc)[kRows / 2], uint64_t x, const uint32_t (&a)[kCommit][4],
                           bool accumulate) {
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < kCommit; ++j) {
      ptx::wgmma<T, 0>(acc, a[j], x + j * 2, accumulate || j > 0);
    }
    ptx::wgmma_commit_group();
  }

  // Waits until all groups up to `group` but the last kDepth - 1 have been multiplied: the next one
  // has registers then, and a stage of X that has been read is released.
  __device__ void release_multiplied(int group, int unit) {
    const int done = group - (kDepth - 1);
    if (kDepth == 2 || done >= 0 || unit > 0) {
      ptx::wgmma_wait_group<kDepth - 1>();
      if (done >= 0 && ends_half(done)) {
        release(x_.stage * kHalves + done / kGroupsOfHalf);
      } else if (done < 0 && ends_half(done + kGroups) && unit > 0) {
        release(previous_ * kHalves + (done + kGroups) / kGroupsOfHalf);
      }
    }
  }

  // Every CTA that sends X to this one, itself included, must know that the stage has been read;
  // but not of the last stages, into which nothing more is loaded: the other CTA may be gone by
  // then.
  __device__ void release(int stage) {
    if (thread_ >= params_.sharers || --releases_ < 0) return;
    if (params_.sharers == 1) {
      ptx::mbarrier_arrive(&smem_.x_empty[stage]);
    } else {
      ptx::mbarrier_arrive_cluster(&smem_.x_empty[stage], place_.split * params_.sharers + thread_);
    }
  }

  const Params& params_;
  SharedStorage<Config>& smem_;
  Place place_;
  int thread_;
  const uint8_t *codes_, *scales_;  // this lane's, in the stage that comes next
  uint64_t x_base_;
  int groups_;
  int releases_;  // still to come
  Dequantizer<T, kForeign> dequantizer_;
  RingState<Config::kWStages> w_;
  RingState<Config::kXStages / kHalves> x_;
  int previous_ = 0;  // unit's pair of stages of X
};

template <typename T, typename Config, bool kForeign>
__device__ inline void consume(const Params& params, SharedStorage<Config>& smem, Place place,
                               int index, int thread) {
  Scheduler scheduler(params, place, Config::kRows);
  Consumer<T, Config, kForeign> consumer(params, smem, place, index, thread, scheduler.units());
  Epilogue<T, Config> epilogue(params, smem.out[index], &smem.inbox_full[index],
                               &smem.inbox_empty[index], place, index, thread);
  Segment segment;
  while (scheduler.next(&segment)) {
    float acc[Config::kRows / 2];
    epilogue.begin(segment);
    consumer.begin(segment, index);
    consumer.accumulate(acc, segment.count);
    epilogue.store(acc, segment, scheduler);
  }
  epilogue.finish();
}

// By one thread.
template <typename Config>
__device__ inline void set_up_barriers(const Params& params, SharedStorage<Config>& smem) {
#pragma unroll 1
  for (int stage = 0; stage < Config::kWStages; ++stage) {
    ptx::mbarrier_init(&smem.w_full[stage], 1);
    ptx::mbarrier_init(&smem.w_empty[stage], Config::kConsumers * kWarpgroup / 32);
  }
#pragma unroll 1
  for (int stage = 0; stage < Config::kXStages; ++stage) {
    ptx::mbarrier_init(&smem.x_full[stage], 1);
    ptx::mbarrier_init(&smem.x_empty[stage], Config::kConsumers * params.sharers);
  }
#pragma unroll 1
  for (int i = 0; i < Config::kConsumers; ++i) {
    ptx::mbarrier_init(&smem.inbox_full[i], 1);
    ptx::mbarrier_init(&smem.inbox_empty[i], 1 << params.split_shift);
  }
  ptx::fence_mbarrier_init();
}

template <typename Config>
__device__ inline void produce(const Params& params, SharedStorage<Config>& smem, Place place,
                               WeightProducer<Config>& weights, int thread) {
  if (thread == 0) {
    weights.run();
  } else if (thread == 32) {
    ptx::griddep_wait();  // the weights do not depend on what ran before, X does
    ActivationProducer<Config>(params, smem, place).run();
  }
}

template <typename T, typename Config, bool kForeign>
__global__ void __launch_bounds__(Config::kThreads, 1)
    wgmma_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem = *reinterpret_cast<SharedStorage<Config>*>(
      raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  // From lane 0, so that the compiler knows it to be the same for the whole warp.
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  const int thread = threadIdx.x % kWarpgroup;
  const int cluster = params.sharers << params.split_shift;
  const int rank = cluster > 1 ? static_cast<int>(ptx::cluster_cta_rank()) : 0;
  const Place place{rank & (params.sharers - 1), rank >> params.sharers_shift};
  if (threadIdx.x == 32) ptx::prefetch_tensormap(&params.x);
  WeightProducer<Config> weights(params, smem, place);
  if (threadIdx.x == 0) {
    set_up_barriers(params, smem);
    weights.start();
  }
  ptx::griddep_launch_dependents();
  if (cluster > 1) {
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    produce(params, smem, place, weights, thread);
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    ptx::griddep_wait();
    consume<T, Config, kForeign>(params, smem, place, warpgroup - 1, thread);
  }
  // No barrier at the end: whatever others send to this CTA, it has waited for.
#endif
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
