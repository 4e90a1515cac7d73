// Tiles of 80 to 160 rows of X. The tensor cores bind here if a warpgroup has its next operands
// ready when they are free; so whatever a batch of wgmmas needs is on its way before the batch that
// comes before it: codes half a unit ahead, scales a unit, and one barrier for W and X of 128 k.
#pragma once

#include "cuda/ptx/mbarrier_test.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/w4a16/sm90/wgmma/cta.cuh"
#include "cuda/w4a16/sm90/wgmma/dequant.cuh"
#include "cuda/w4a16/sm90/wgmma/unit_groups.cuh"
#include "cuda/w4a16/sm90/wgmma/unit_pipeline.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

template <typename T, typename Config>
class MediumMConsumer {
  static constexpr int kRows = Config::kRows;

 public:
  __device__ MediumMConsumer(const Params& params, UnitStorage<Config>& smem, int consumer,
                             int thread)
      : params_(params),
        smem_(smem),
        consumer_(consumer),
        thread_(thread),
        strip_(smem.w[0][consumer] + thread / 32 * params.strip_bytes),
        x_base_(ptx::wgmma_descriptor(smem.x[0], 16, 1024)) {}

  // acc = W X^T over the segment's units of K.
  __device__ void accumulate(float (&acc)[kRows / 2], const Segment& segment) {
#pragma unroll
    for (float& x : acc) x = 0.0f;
    if (params_.bf16_scales != std::is_same_v<T, __nv_bfloat16>) {
      if constexpr (takes_foreign_scales(kRows)) {
        run<ForeignScales>(acc, segment);
      }
    } else if (params_.groups_per_unit != 1 || params_.zeros) {
      run<AnyScales>(acc, segment);
    } else {
      run<PlainScales>(acc, segment);
    }
  }

 private:
  // What a format's scales take: begin() is of a segment's first unit. fetch() reads those of the
  // next one, once its stage is full, and from enter() on expand() is of that one.

  // Of the commonest format.
  class PlainScales {
   public:
    static constexpr int kWords = Config::kWords, kBuffers = Config::kBuffers;
    __device__ PlainScales(const MediumMConsumer& consumer, const Segment&) : consumer_(consumer) {}
    __device__ void begin(int stage) { fetch(stage), enter(stage); }
    __device__ void fetch(int stage) {
      const auto* from = reinterpret_cast<const uint16_t*>(consumer_.scales(stage) +
                                                           consumer_.thread_ % 32 / 4 * 2);
      scales_[0] = from[0], scales_[1] = from[8];
    }
    __device__ void enter(int) { dequantizer_.set_scales(scales_[0], scales_[1]); }
    __device__ void expand(const uint32_t (&words)[8], int first, uint32_t (&a)[kWords][4]) {
      expand_words(dequantizer_, words, first, a);
    }

   private:
    const MediumMConsumer& consumer_;
    Dequantizer<T, false> dequantizer_;
    uint32_t scales_[2];
  };

  // Of any format whose scales are of the activations' type.
  class AnyScales {
   public:
    static constexpr int kWords = Config::kWords, kBuffers = Config::kBuffers;
    __device__ AnyScales(const MediumMConsumer& consumer, const Segment& segment)
        : consumer_(consumer), groups_(consumer.params_.groups_per_unit, consumer.thread_ % 32) {
      const Params& params = consumer.params_;
      if (params.groups_per_unit == 0) {
        groups_.load(consumer.scales_of_tile(segment), kWarpgroupColumns * 2, params.zeros);
      }
    }
    __device__ void begin(int stage) { enter(stage); }
    __device__ void fetch(int) {}
    __device__ void enter(int stage) {
      const Params& params = consumer_.params_;
      if (params.groups_per_unit == 0) return;
      groups_.load(consumer_.scales(stage), params.groups_per_unit * 32, params.zeros);
    }
    __device__ void expand(const uint32_t (&words)[8], int first, uint32_t (&a)[kWords][4]) {
      groups_.expand(words, first, a);
    }

   private:
    const MediumMConsumer& consumer_;
    UnitGroups<T> groups_;
  };

  // Of the 16-bit type that the activations do not have.
  class ForeignScales {
   public:
    static constexpr int kWords = Config::kGeneralWords, kBuffers = 2;
    __device__ ForeignScales(const MediumMConsumer& consumer, const Segment& segment)
        : consumer_(consumer) {
      if (consumer.params_.groups_per_unit > 0) return;
      load(consumer.scales_of_tile(segment), kWarpgroupColumns * 2);
    }
    __device__ void begin(int stage) { stage_ = stage; }
    __device__ void fetch(int) {}
    __device__ void enter(int stage) { stage_ = stage; }
    // A unit has 0, 1, 2 or 4 groups.
    __device__ void expand(const uint32_t (&words)[8], int first, uint32_t (&a)[kWords][4]) {
      const int groups = consumer_.params_.groups_per_unit;
      if (groups > 0 && first * groups % 8 == 0) {
        load(consumer_.scales(stage_) + first * groups / 8 * 32, groups * 32);
      }
      expand_words(dequantizer_, words, first, a);
    }

   private:
    __device__ void load(const uint8_t* scales, int zeros_apart) {
      dequantizer_.load_group(
          {scales + consumer_.thread_ % 32 / 4 * 2, zeros_apart, consumer_.params_.zeros});
    }
    const MediumMConsumer& consumer_;
    Dequantizer<T, true> dequantizer_;
    int stage_ = 0;
  };

  template <typename Scales>
  __device__ void run(float (&acc)[kRows / 2], const Segment& segment) {
    // Words of codes, 16 k each, for a batch of wgmmas. A group may be as short as two of them.
    constexpr int kWords = Scales::kWords, kBuffers = Scales::kBuffers;
    constexpr int kSteps = w4::kUnitK / 16 / kWords, kHalf = kSteps / 2;
    Scales scales(*this, segment);
    uint4 codes[2];  // of 64 k each
    uint32_t a[kBuffers][kWords][4];
    int previous = -1;  // stage that wgmmas may still read
    ptx::mbarrier_wait(&smem_.w_full[state_.stage], state_.parity);
    codes[0] = load_codes(state_.stage, 0);
    if constexpr (kHalf == 0) codes[1] = load_codes(state_.stage, 1);
    scales.begin(state_.stage);
#pragma unroll 1
    for (int unit = 0; unit < segment.count; ++unit) {
      const PipelineState<Config::kWStages> next = state_.next();
      const bool more = unit + 1 < segment.count;
      const uint64_t x = x_base_ + state_.stage * (2 * Config::kXBytes / 16);
      bool ready = false;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint32_t words[8] = {codes[0].x, codes[0].y, codes[0].z, codes[0].w,
                                   codes[1].x, codes[1].y, codes[1].z, codes[1].w};
        scales.expand(words, step * kWords, a[step % kBuffers]);
        multiply(acc, a[step % kBuffers], x, step * kWords);
        if (kHalf > 0 && step == 0) codes[1] = load_codes(state_.stage, 1);
        // The barrier is asked before it is needed.
        if (more && step == (kHalf > 0 ? kHalf - 1 : 0)) {
          ready = ptx::mbarrier_test(&smem_.w_full[next.stage], next.parity);
        }
        if (more && step == kHalf) {
          if (!ready) ptx::mbarrier_wait(&smem_.w_full[next.stage], next.parity);
          codes[0] = load_codes(next.stage, 0);
          if constexpr (kHalf == 0) codes[1] = load_codes(next.stage, 1);
          scales.fetch(next.stage);
        }
        // While wgmmas run: what the next unit's first operands are made with.
        if (more && step == kSteps - 1) scales.enter(next.stage);
        // The operands that come next replace those of the step before, or of this one.
        ptx::wgmma_wait_group<kBuffers - 1>();
        if (kBuffers == 2 && step == 0 && previous >= 0) release(previous);
      }
      if constexpr (kBuffers == 1) release(state_.stage);
      previous = state_.stage;
      state_ = next;
    }
    if constexpr (kBuffers == 2) {
      ptx::wgmma_wait_group<0>();
      release(previous);
    }
  }

  // Of this warp's columns, where they have one group each.
  __device__ const uint8_t* scales_of_tile(const Segment& segment) const {
    const int row = min(segment.column * Config::kConsumers + consumer_, params_.weight_rows - 1);
    return params_.weight + row * params_.row_bytes +
           static_cast<int64_t>(params_.units) * params_.unit_bytes + thread_ / 32 * (16 * 2);
  }

  __device__ const uint8_t* strip(int stage) const { return strip_ + stage * Config::kWBytes; }
  __device__ const uint8_t* scales(int stage) const { return strip(stage) + w4::kStripCodeBytes; }
  __device__ uint4 load_codes(int stage, int half) const {
    return *reinterpret_cast<const uint4*>(strip(stage) + half * 512 + thread_ % 32 * 16);
  }

  // acc += A X over 16 k from word `word` of the unit on, for each of A's.
  template <int kWords>
  __device__ static void multiply(float (&acc)[kRows / 2], const uint32_t (&a)[kWords][4],
                                  uint64_t x, int word) {
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      ptx::wgmma<T, 0>(acc, a[j], x + (word + j) / 4 * (Config::kXBytes / 16) + (word + j) % 4 * 2,
                       true);
    }
    ptx::wgmma_commit_group();
  }

  __device__ void release(int stage) const {
    if (ptx::kAllArrive || thread_ == 0) ptx::mbarrier_arrive(&smem_.w_empty[stage]);
  }

  const Params& params_;
  UnitStorage<Config>& smem_;
  int consumer_, thread_;
  const uint8_t* strip_;  // this warp's, in the first stage
  uint64_t x_base_;
  PipelineState<Config::kWStages> state_;
};

template <typename T, typename Config>
__device__ inline void consume_medium_m(const Params& params, UnitStorage<Config>& smem,
                                        Place place, int index, int thread) {
  Scheduler scheduler(params, place, Config::kRows);
  MediumMConsumer<T, Config> consumer(params, smem, index, thread);
  Epilogue<T, Config> epilogue(params, smem.out[index], &smem.inbox_full[index],
                               &smem.inbox_empty[index], place, index, thread);
  Segment segment;
  while (scheduler.next(&segment)) {
    float acc[Config::kRows / 2];
    epilogue.begin(segment);
    consumer.accumulate(acc, segment);
    epilogue.store(acc, segment, scheduler);
  }
  epilogue.finish();
}

template <typename T, typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    medium_m_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Storage = UnitStorage<Config>;
  run_cta<Config, Storage, UnitActivations<Config>>(
      params, [&](Storage& smem, Place place, int warpgroup, int thread) {
        consume_medium_m<T, Config>(params, smem, place, warpgroup, thread);
      });
#endif
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
