// Shared memory of tiles that keep two pipelines, of units of W and of boxes of X, which warps fill
// that do not wait for each other's; and the warp that loads X.
#pragma once

#include "cuda/ptx/tma_2d.h"
#include "cuda/w4a16/sm90/wgmma/loaders.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

template <typename Config>
struct SharedStorage {
  alignas(1024) uint8_t x[Config::kXStages][Config::kXBytes];
  alignas(1024) uint8_t out[Config::kConsumers][Config::kOutBytes];
  alignas(128) uint8_t w[Config::kWStages][Config::kConsumers][kUnitSlot];
  uint64_t x_full[Config::kXStages], x_empty[Config::kXStages];
  uint64_t w_full[Config::kWStages], w_empty[Config::kWStages];
  uint64_t inbox_full[Config::kConsumers], inbox_empty[Config::kConsumers];
};
template <typename Config>
inline constexpr int kSmemBytes = sizeof(SharedStorage<Config>) + 1024;  // + alignment

// By a warp: boxes of X, 64 k of the rows of the next units of `walk`. Each of the CTAs that share
// X sends all of them its part of the rows, once the barriers of all of them stand.
template <typename Config>
class Activations {
 public:
  __device__ Activations(const Params& params, SharedStorage<Config>& smem, Walk<Config>& walk)
      : params_(params), smem_(smem), walk_(walk) {}

  // The first unit's. (Were all boxes asked for at once, every SM's first would wait behind the
  // others' later ones.)
  __device__ void start() {
    if (!walk_.done()) load();
  }

  // The rest.
  __device__ void run() {
    if (walk_.done()) return;
    ptx::mbarrier_wait(&smem_.x_full[0], 0);
    state_.stage = kBoxes;
#pragma unroll 1
    while (!walk_.done()) load();
  }

 private:
  static constexpr int kBoxes = static_cast<int>(w4::kUnitK) / kStageK;  // of a unit

  __device__ __forceinline__ void load() {
#pragma unroll 1
    for (int box = 0; box < kBoxes; ++box) {
      ptx::mbarrier_wait(&smem_.x_empty[state_.stage], state_.parity ^ 1);
      if (ptx::elect_one()) load_box((walk_.unit() * kBoxes + box) * kStageK);
      __syncwarp();
      state_.advance();
    }
    walk_.advance();
  }

  __device__ void load_box(int k) const {
    uint64_t* full = &smem_.x_full[state_.stage];
    ptx::mbarrier_arrive_expect_tx(full, Config::kXBytes);
    uint8_t* stage = smem_.x[state_.stage];
    if (params_.sharers == 1) {
      ptx::tma_load_2d(stage, &params_.x, full, k, walk_.m());
    } else {
      const Place place = walk_.place();
      const int first = Config::kRows / params_.sharers * place.sharer;
      const uint32_t sharers = (1u << params_.sharers) - 1;
      ptx::tma_load_multicast_2d(stage + first * kStageK * 2, &params_.x, full,
                                 static_cast<uint16_t>(sharers << place.split * params_.sharers), k,
                                 walk_.m() + first);
    }
  }

  const Params& params_;
  SharedStorage<Config>& smem_;
  Walk<Config>& walk_;
  PipelineState<Config::kXStages> state_;
};

// By one thread: what the first loads need.
template <typename Config>
__device__ inline void set_up_full_barriers(SharedStorage<Config>& smem) {
#pragma unroll
  for (int stage = 0; stage < Config::kWStages; ++stage) ptx::mbarrier_init(&smem.w_full[stage], 1);
#pragma unroll
  for (int stage = 0; stage < Config::kXStages; ++stage) ptx::mbarrier_init(&smem.x_full[stage], 1);
  ptx::fence_mbarrier_init();
}

// By another one: all others.
template <typename Config>
__device__ inline void set_up_other_barriers(const Params& params, SharedStorage<Config>& smem) {
#pragma unroll
  for (int stage = 0; stage < Config::kWStages; ++stage) {
    ptx::mbarrier_init(&smem.w_empty[stage],
                       ptx::group_arrivals(Config::kConsumers * kWarpgroup / 32));
  }
#pragma unroll
  for (int stage = 0; stage < Config::kXStages; ++stage) {
    ptx::mbarrier_init(&smem.x_empty[stage], Config::kConsumers * params.sharers);
  }
  set_up_inbox_barriers<Config>(params, smem);
  ptx::fence_mbarrier_init();
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
