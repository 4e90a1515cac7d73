// Tiles of 192 rows of X and more: Y^T = W X^T by wgmma, with W dequantized in registers as its A
// operand.
//
// Persistent CTAs of one producer warpgroup, of which a warp feeds a pipeline of packed units of W
// and another one of boxes of X, and of two consumer warpgroups of 64 columns of D each. A consumer
// turns 64 k of codes into operands while its wgmmas of the 64 k before run. A cluster shares X
// (multicast). Clusters take whole tiles, or equal ranges of all tiles' K, and complete each
// other's sums.
#pragma once

#include "cuda/ptx/mbarrier_test.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/tile/layout_index.h"
#include "cuda/w4a16/sm90/wgmma/cta.cuh"
#include "cuda/w4a16/sm90/wgmma/dequant.cuh"
#include "cuda/w4a16/sm90/wgmma/pipeline.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

template <typename T, typename Config, bool kForeign>
class Consumer {
  static constexpr int kRows = Config::kRows;
  static constexpr int kHalves = 2;  // of a unit: 64 k each, which is a stage of X

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
    dequantizer_.load_group({params_.weight + row * params_.row_bytes +
                                 static_cast<int64_t>(params_.units) * params_.unit_bytes +
                                 layout::fragment_place(64, 8, thread_, 0).row * 2,
                             kWarpgroupColumns * 2, params_.zeros});
  }

  // acc = W X^T over `units` units of K, one at least. What a step waits for is asked for a step
  // before: a warp that issues a wgmma stands still until the ones before it have begun, so that
  // every cycle between two batches of them counts.
  __device__ void accumulate(float (&acc)[kRows / 2], int units) {
    uint32_t a[2][4][4];
    uint4 codes;
    ptx::mbarrier_wait(&smem_.w_full[w_.stage], w_.parity);
    codes = load_codes(0);
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      bool ready = x_ready(0);
      dequantize(0, codes, a[0]);
      codes = load_codes(1);
      multiply(acc, 0, a[0], unit > 0, ready);
      release_multiplied(0, unit > 0);
      ready = x_ready(1);
      const bool more = unit + 1 < units;
      const PipelineState<Config::kWStages> next = w_.next();
      const bool w_ready = ptx::mbarrier_test(&smem_.w_full[next.stage], next.parity);
      dequantize(1, codes, a[1]);
      release_weights();
      if (more) {
        if (!w_ready) ptx::mbarrier_wait(&smem_.w_full[w_.stage], w_.parity);
        codes = load_codes(0);
      }
      multiply(acc, 1, a[1], true, ready);
      release_multiplied(1, true);
      x_.advance();
    }
    ptx::wgmma_wait_group<0>();
    release(previous_);
  }

 private:
  __device__ uint4 load_codes(int half) const {
    return *reinterpret_cast<const uint4*>(codes_ + half * 512);
  }
  __device__ bool x_ready(int half) const {
    return ptx::mbarrier_test(&smem_.x_full[x_.stage * kHalves + half], x_.parity);
  }

  // Operands of 64 k. A unit has 0, 1, 2 or 4 groups.
  __device__ void dequantize(int half, uint4 codes, uint32_t (&a)[4][4]) {
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    if (groups_ > half) load_group(half * groups_ / 2);
    if (dequantizer_.subnormal()) {
#pragma unroll
      for (int j = 0; j < 4; ++j) dequantizer_.expand_subnormal(words[j], a[j]);
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j == 2 && groups_ == 4) load_group(half * 2 + 1);
      dequantizer_.expand(words[j], a[j]);
    }
  }

  __device__ void load_group(int group) {
    dequantizer_.load_group({scales_ + group * 32, groups_ * 32, params_.zeros, groups_ == 4});
  }

  // The whole warp has read the unit.
  __device__ void release_weights() {
    __syncwarp();
    if (ptx::kAllArrive || thread_ % 32 == 0) ptx::mbarrier_arrive(&smem_.w_empty[w_.stage]);
    const int step = w_.stage + 1 < Config::kWStages ? Config::kWBytes
                                                     : (1 - Config::kWStages) * Config::kWBytes;
    codes_ += step, scales_ += step;
    w_.advance();
  }

  // acc += A X over 64 k.
  __device__ void multiply(float (&acc)[kRows / 2], int half, const uint32_t (&a)[4][4],
                           bool accumulate, bool ready) {
    const int stage = x_.stage * kHalves + half;
    if (!ready) ptx::mbarrier_wait(&smem_.x_full[stage], x_.parity);
    const uint64_t x = x_base_ + stage * (Config::kXBytes / 16);
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      ptx::wgmma<T, 0>(acc, a[j], x + j * 2, accumulate || j > 0);
    }
    ptx::wgmma_commit_group();
  }

  // Once the wgmmas of the 64 k before have ended, the registers of their operand are free, and
  // their stage of X.
  __device__ void release_multiplied(int half, bool any_before) {
    ptx::wgmma_wait_group<1>();
    if (any_before) release(previous_);
    previous_ = x_.stage * kHalves + half;
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
  PipelineState<Config::kWStages> w_;
  PipelineState<Config::kXStages / kHalves> x_;
  int previous_ = 0;  // stage of X
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

template <typename T, typename Config, bool kForeign>
__global__ void __launch_bounds__(Config::kThreads, 1)
    large_m_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Storage = SharedStorage<Config>;
  run_cta<Config, Storage, Activations<Config>>(
      params, [&](Storage& smem, Place place, int warpgroup, int thread) {
        consume<T, Config, kForeign>(params, smem, place, warpgroup, thread);
      });
#endif
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
