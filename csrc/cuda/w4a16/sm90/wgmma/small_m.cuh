// Tiles of up to 64 rows of X, where neither memory nor the tensor cores bind, but instructions and
// what waits for what: the operand is made by two instructions for two codes, the scale multiplies
// sums of a group, and W and X of 128 k share one barrier. Warpgroups may share the K of the same
// columns, so that few columns, too, keep the CTA's schedulers busy.
#pragma once

#include "cuda/ptx/wgmma.h"
#include "cuda/tile/cluster_reduction.cuh"
#include "cuda/tile/pipeline_state.cuh"
#include "cuda/tile/stream_k.cuh"
#include "cuda/w4a16/sm90/wgmma/cta.cuh"
#include "cuda/w4a16/sm90/wgmma/small_m_dequant.cuh"
#include "cuda/w4a16/sm90/wgmma/unit_groups.cuh"
#include "cuda/w4a16/sm90/wgmma/unit_pipeline.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// Format: how a unit of W is read, by the names that Params has for it.
template <typename T, typename Config, typename Format = Params>
class SmallMConsumer {
  static constexpr int kRows = Config::kRows, kUnits = Config::kStageUnits;
  static constexpr bool kPlain = Config::kPlain;
  // Of the warpgroups that have a stage's second unit; the block after the first has none.
  static constexpr int kSkipBarrier = kLeftBarrier + 1;
  static_assert(kUnits == 1 || (Config::kConsumers == 1 && Config::kStagePeriod == 2));

 public:
  // Warpgroup `part` of those that share block `block` of the tile's columns.
  __device__ SmallMConsumer(const Format& params, UnitStorage<Config>& smem, int block, int part,
                            int thread)
      : params_(params),
        smem_(smem),
        block_(block),
        part_(part),
        thread_(thread),
        strip_(smem.w[0][block] + part % kUnits * params.unit_bytes +
               thread / 32 * params.strip_bytes),
        x_base_(ptx::wgmma_descriptor(smem.x[0][part % kUnits * 2], 16, 1024)),
        groups_(params.groups_per_unit) {}

  // The scales of a tile whose columns have one group each.
  __device__ void begin(const Segment& segment) {
    if (kPlain || groups_ > 0) return;
    const int row = min(segment.column * Config::kConsumers + block_, params_.weight_rows - 1);
    codes_.template load_group<false>(
        {params_.weight + row * params_.row_bytes +
             static_cast<int64_t>(params_.units) * params_.unit_bytes +
             (thread_ / 32 * 16 + thread_ % 32 / 4) * 2,
         kWarpgroupColumns * 2, params_.zeros},
        params_.bf16_scales);
  }

  // The same, of whoever knows where those of this warp's 16 columns lie.
  __device__ void load_channel_scales(const uint8_t* scales) {
    codes_.template load_group<false>(
        {scales + thread_ % 32 / 4 * 2, kWarpgroupColumns * 2, params_.zeros}, params_.bf16_scales);
  }

  // total = W X^T over this warpgroup's part of `units` units of K.
  __device__ void accumulate(float (&total)[kRows / 2], int units) {
#pragma unroll
    for (float& x : total) x = 0.0f;
    if constexpr (kPlain) {
      run<1>(total, units);
    } else if (groups_ <= 1) {
      run<1>(total, units);
    } else if (!Config::kScaledSums && params_.bf16_scales == std::is_same_v<T, __nv_bfloat16>) {
      run_weights(total, units);
    } else {
      groups_ == 2 ? run<2>(total, units) : run<4>(total, units);
    }
  }

 private:
  // Calls step(strip, x) for this warpgroup's units, the strip and X of a unit each.
  template <typename Step>
  __device__ __forceinline__ void for_units(int units, Step step) {
    // Stages of all tiles go around the warpgroups, so that one always has the same ones: its
    // barrier's parity then tells phases apart.
    constexpr uint32_t kStagePeriod = Config::kStagePeriod;
    const uint32_t stages = ceil_div(units, kUnits),
                   first = (part_ / kUnits - seen_) % kStagePeriod;
    const int within = part_ % kUnits;  // a stage
    auto state = PipelineState<Config::kWStages>::after(seen_ + first);
#pragma unroll 1
    for (uint32_t at = first; at < stages; at += kStagePeriod) {
      const uint32_t stage = state.stage;  // unsigned: offsets then need no sign
      ptx::mbarrier_wait(&smem_.w_full[stage], state.parity);
      if (kUnits == 1 || static_cast<int>(at) * kUnits + within < units) {
        step(strip_ + stage * (kUnits * Config::kWBytes),
             x_base_ + stage * (kUnits * 2 * Config::kXBytes / 16));
      } else {
        // No product keeps the warps together here: one that has not seen the stage full must not
        // find it filled anew.
        ptx::named_barrier_sync(kSkipBarrier + part_ / kUnits, kWarpgroup);
      }
      if (ptx::kAllArrive || thread_ == 0) ptx::mbarrier_arrive(&smem_.w_empty[stage]);
      state.advance(kStagePeriod);
    }
    seen_ += stages;
  }

  // With scales on sums. kGroups: of a unit, each a step.
  template <int kGroups>
  __device__ void run(float (&total)[kRows / 2], int units) {
    for_units(units, [&](const uint8_t* strip, uint64_t x) {
      if constexpr (kGroups > 1) {
        constexpr int kWords = 8 / kGroups;
#pragma unroll 1
        for (int group = 0; group < kGroups; ++group) {
          load_group(strip, group);
          const int first = group * kWords;
          uint32_t words[kWords];
#pragma unroll
          for (int j = 0; j < kWords; j += 2) {
            const uint2 two = *reinterpret_cast<const uint2*>(
                strip + first / 4 * 512 + thread_ % 32 * 16 + (first % 4 + j) * 4);
            words[j] = two.x, words[j + 1] = two.y;
          }
          multiply(total, words, x + first / 4 * (Config::kXBytes / 16) + first % 4 * 2);
        }
      } else {
        if (kPlain || groups_ > 0) load_group(strip, 0);
        uint32_t words[8];
        load_codes(strip, words);
        multiply(total, words, x);
      }
    });
  }

  // With weights that are multiplied by their scales: units of several groups, whose sums would
  // each have to be multiplied by scales of their own.
  __device__ void run_weights(float (&total)[kRows / 2], int units) {
    UnitGroups<T> groups(groups_, thread_ % 32);
    for_units(units, [&](const uint8_t* strip, uint64_t x) {
      uint32_t words[8], a[8][4];
      load_codes(strip, words);
      groups.load(strip + w4::kStripCodeBytes, groups_ * 32, params_.zeros);
      groups.expand(words, 0, a);
      ptx::wgmma_fence();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        ptx::wgmma<T, 0>(total, a[j], x + j / 4 * (Config::kXBytes / 16) + j % 4 * 2, 1);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
    });
  }

  __device__ void load_codes(const uint8_t* strip, uint32_t (&words)[8]) const {
    const uint8_t* codes = strip + thread_ % 32 * 16;
    const uint4 low = *reinterpret_cast<const uint4*>(codes);
    const uint4 high = *reinterpret_cast<const uint4*>(codes + 512);
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
  }

  __device__ void load_group(const uint8_t* strip, int group) {
    codes_.template load_group<kPlain>(
        {strip + w4::kStripCodeBytes + group * 32 + thread_ % 32 / 4 * 2, groups_ * 32,
         params_.zeros},
        params_.bf16_scales);
  }

  // total += scale * (the words' codes less their zero points) X, over 16 k for each word.
  template <int kWords>
  __device__ void multiply(float (&total)[kRows / 2], const uint32_t (&words)[kWords],
                           uint64_t x) const {
    // Where loops for several formats share the kernel, 48 rows and more leave registers for the
    // operands of half a unit.
    constexpr int kTogether = kPlain || kRows < 48 || kWords < 4 ? kWords : 4;
    float sums[kRows / 2];
#pragma unroll
    for (int first = 0; first < kWords; first += kTogether) {
      uint32_t some[kTogether], a[kTogether][4];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) some[j] = words[first + j];
      codes_.template expand<kPlain>(some, a);
      ptx::wgmma_fence();
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int word = first + j;
        ptx::wgmma<T, 0>(sums, a[j], x + word / 4 * (Config::kXBytes / 16) + word % 4 * 2,
                         word > 0);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
    }
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      total[i] = fmaf(codes_.scale(i / 2 % 2), sums[i], total[i]);
    }
  }

  const Format& params_;
  UnitStorage<Config>& smem_;
  int block_, part_, thread_;
  const uint8_t* strip_;  // this warp's, in the first stage
  uint64_t x_base_;
  int groups_;
  Centered<T> codes_;
  uint32_t seen_ = 0;  // stages, of all warpgroups
};

// The sums of the warpgroups that share a block's K, to the first of them. Which of them has a
// tile's first unit depends on the tiles before, but must not change the bits: of four, those that
// take turns two units apart are added first. A thread meets those of its own place in the other
// warpgroups only.
template <typename Config>
class PartsExchange {
  static constexpr int kRows = Config::kRows, kParts = Config::kParts;
  static constexpr int kHalf = kParts / 2;
  static constexpr int kPair = 2 * kWarpgroup;
  static_assert(kParts == 1 || kParts == 2 || kParts == 4, "the order of sums");

 public:
  __device__ PartsExchange(UnitStorage<Config>& smem, int block, int part, int thread)
      : sums_(smem.sums[block]),
        points_(smem.meetings[block], 1 + Config::kConsumers + Config::kMeetings * block),
        part_(part),
        thread_(thread) {}

  // Of all parts; afterwards that of part 0 is the sum. `last`: there is no tile after this.
  __device__ void add_up(float (&acc)[kRows / 2], bool last) {
    if ((part_ > 0 || ptx::kAllArrive) && started_) points_.meet(kFree, kParts * kWarpgroup);
    started_ = true;
    if (part_ >= kHalf) {
      give(acc, part_ - kHalf);
      points_.hand_over(part_ - kHalf, kPair);
      return;
    }
    points_.meet(part_, kPair);
    take(acc, part_);
    if constexpr (kParts == 4) {
      if (part_ == 1) {
        give(acc, 1);
        points_.hand_over(kSecond, kPair);
        return;
      }
      points_.meet(kSecond, kPair);
      take(acc, 1);
    }
    if (!last && !ptx::kAllArrive) points_.hand_over(kFree, kParts * kWarpgroup);
  }

 private:
  // Where parts meet: the sums of a part are there; those of two; all have been read.
  static constexpr int kSecond = kHalf, kFree = Config::kMeetings - 1;
  static_assert(1 + Config::kConsumers +
                        (kParts > 1 ? Config::kMeetings * Config::kConsumers : 0) <=
                    kSetUpBarrier,
                "barriers must be told apart");

  __device__ void give(const float (&acc)[kRows / 2], int slot) {
    leave_sums(sums_[slot] + thread_, kWarpgroup, acc);
  }
  __device__ void take(float (&acc)[kRows / 2], int slot) const {
    add_received_quads<0, kRows / 8>(acc, sums_[slot] + thread_, kWarpgroup);
  }

  float4 (*sums_)[Config::kSumsOfPart];
  ptx::MeetingPoints<Config::kMeetings> points_;
  int part_, thread_;
  bool started_ = false;
};

template <typename T, typename Config>
__device__ inline void consume_small_m(const Params& params, UnitStorage<Config>& smem, Place place,
                                       int warpgroup, int thread) {
  const int block = warpgroup % Config::kConsumers, part = warpgroup / Config::kConsumers;
  Scheduler scheduler(params, place, Config::kRows);
  SmallMConsumer<T, Config> consumer(params, smem, block, part, thread);
  PartsExchange<Config> parts(smem, block, part, thread);
  Segment segment;
  if (part > 0) {
    while (scheduler.next(&segment)) {
      float acc[Config::kRows / 2];
      consumer.begin(segment);
      consumer.accumulate(acc, segment.count);
      parts.add_up(acc, scheduler.done());
    }
    return;
  }
  Epilogue<T, Config> epilogue(params, smem.out[block], &smem.inbox_full[block],
                               &smem.inbox_empty[block], place, block, thread);
  while (scheduler.next(&segment)) {
    float acc[Config::kRows / 2];
    epilogue.begin(segment);
    consumer.begin(segment);
    consumer.accumulate(acc, segment.count);
    if constexpr (Config::kParts > 1) parts.add_up(acc, scheduler.done());
    epilogue.store(acc, segment, scheduler);
  }
  epilogue.finish();
}

template <typename T, typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    small_m_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Storage = UnitStorage<Config>;
  run_cta<Config, Storage, UnitActivations<Config>>(
      params, [&](Storage& smem, Place place, int warpgroup, int thread) {
        consume_small_m<T, Config>(params, smem, place, warpgroup, thread);
      });
#endif
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
