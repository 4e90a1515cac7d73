// Shared memory of tiles whose stages hold W and X of 128 k, and the warp that loads X.
#pragma once

#include "cuda/ptx/tma.h"
#include "cuda/w4a16/sm90/wgmma/loaders.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// A stage is 128 k, or a few times that: the units of the tile's columns, which lie one behind the
// other, and two boxes of X for each. Its barriers are those of the weights' pipeline, which the
// warps that load W and X both keep.
template <typename Config>
struct UnitStorage {
  alignas(1024) uint8_t x[Config::kWStages][2 * Config::kStageUnits][Config::kXBytes];
  alignas(1024) uint8_t out[Config::kConsumers][Config::kOutBytes];
  alignas(128) uint8_t w[Config::kWStages][Config::kConsumers][Config::kStageUnits * kUnitSlot];
  // Of warpgroups that share K: [8 rows of X][thread] each.
  float4 sums[Config::kConsumers][Config::kSumsSlots][Config::kSumsOfPart];
  uint64_t w_full[Config::kWStages], w_empty[Config::kWStages];
  uint64_t inbox_full[Config::kConsumers], inbox_empty[Config::kConsumers];
  ptx::MeetingMemory<Config::kMeetings> meetings[Config::kConsumers];  // of warpgroups that share K
};
template <typename Config>
inline constexpr int kUnitSmemBytes = sizeof(UnitStorage<Config>) + 1024;  // + alignment

// By a warp: X of the same stages.
template <typename Config>
class UnitActivations {
 public:
  __device__ UnitActivations(const Params& params, UnitStorage<Config>& smem, Walk<Config>& walk)
      : params_(params), smem_(smem), walk_(walk) {}

  __device__ void start() {
#pragma unroll 1
    for (int i = 0; i < Config::kWStages && !walk_.done(); ++i) load();
  }

  __device__ void run() {
    state_.parity = 1;
#pragma unroll 1
    while (!walk_.done()) {
      ptx::mbarrier_wait(&smem_.w_empty[state_.stage], state_.parity ^ 1);
      load();
    }
  }

 private:
  __device__ __forceinline__ void load() {
    if (ptx::elect_one()) {
      uint64_t* full = &smem_.w_full[state_.stage];
      constexpr int kBoxes = 2 * Config::kStageUnits;
      constexpr int kTogether = boxes_of_x(Config::kRows, Config::kStageUnits, kStageK);
      // Where the walk's segment or K ends within the stage, X is read on, or zeros are.
      ptx::mbarrier_arrive_expect_tx(full, kBoxes * Config::kXBytes);
      const int first = 2 * walk_.unit();
      if (kTogether > 1 && params_.x_boxes > 1) {
#pragma unroll
        for (int box = 0; box < kBoxes; box += kTogether) {
          ptx::tma_load_3d(smem_.x[state_.stage][box], &params_.x, full, 0, walk_.m(), first + box);
        }
      } else {
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          ptx::tma_load_3d(smem_.x[state_.stage][box], &params_.x, full, (first + box) * kStageK,
                           walk_.m(), 0);
        }
      }
    }
    __syncwarp();
    state_.advance();
    walk_.advance(walk_.within(Config::kStageUnits));
  }

  const Params& params_;
  UnitStorage<Config>& smem_;
  Walk<Config>& walk_;
  PipelineState<Config::kWStages> state_;
};

// By one thread: what the first loads need.
template <typename Config>
__device__ inline void set_up_full_barriers(UnitStorage<Config>& smem) {
#pragma unroll
  for (int stage = 0; stage < Config::kWStages; ++stage) ptx::mbarrier_init(&smem.w_full[stage], 2);
  ptx::fence_mbarrier_init();
}

// By another one: all others.
template <typename Config>
__device__ inline void set_up_other_barriers(const Params& params, UnitStorage<Config>& smem) {
#pragma unroll
  for (int stage = 0; stage < Config::kWStages; ++stage) {
    ptx::mbarrier_init(&smem.w_empty[stage],
                       ptx::group_arrivals(Config::kConsumers * Config::kStageUnits, kWarpgroup));
  }
  if constexpr (Config::kParts > 1) {
#pragma unroll
    for (int i = 0; i < Config::kConsumers * Config::kMeetings; ++i) {
      const int block = i / Config::kMeetings, point = i % Config::kMeetings;
      // At the last one all parts meet, at the others two.
      const int parts = point + 1 == Config::kMeetings ? Config::kParts : 2;
      ptx::MeetingPoints<Config::kMeetings>::set_up(smem.meetings[block], point,
                                                    parts * kWarpgroup);
    }
  }
  set_up_inbox_barriers<Config>(params, smem);
  ptx::fence_mbarrier_init();
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
