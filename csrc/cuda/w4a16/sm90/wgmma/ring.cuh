// Shared memory of tiles that keep two rings, of units of W and of boxes of X, which warps fill
// that do not wait for each other's; and the warp that loads X.
#pragma once

#include "cuda/ptx/tma_2d.h"
#include "cuda/w4a16/sm90/wgmma/few_load.cuh"

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

// By a warp: boxes of X, 64 k of the tile's rows. Each of the CTAs that share X sends all of them
// its part of the rows, once the barriers of all of them stand.
template <typename Config>
class Activations {
 public:
  __device__ Activations(const Params& params, SharedStorage<Config>& smem, Place place,
                         FewWalk<Config>& walk)
      : params_(params), smem_(smem), place_(place), walk_(walk) {}

  __device__ void start() {}  // nothing: the barriers of others need not stand yet

  __device__ void run() {
    bool first = true;
#pragma unroll 1
    while (!walk_.done()) {
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        ptx::mbarrier_wait(&smem_.x_empty[ring_.stage], ring_.parity ^ 1);
        if (ptx::elect_one()) load(walk_.unit() * static_cast<int>(w4::kUnitK) + half * kStageK);
        __syncwarp();
        ring_.advance();
      }
      walk_.advance();
      // Were all boxes asked for at once, every SM's first would wait behind the others' later
      // ones.
      if (first) ptx::mbarrier_wait(&smem_.x_full[0], 0);
      first = false;
    }
  }

 private:
  __device__ void load(int k) const {
    uint64_t* full = &smem_.x_full[ring_.stage];
    ptx::mbarrier_arrive_expect_tx(full, Config::kXBytes);
    uint8_t* stage = smem_.x[ring_.stage];
    if (params_.sharers == 1) {
      ptx::tma_load_2d(stage, &params_.x, full, k, walk_.m());
    } else {
      const int first = Config::kRows / params_.sharers * place_.sharer;
      const uint32_t sharers = (1u << params_.sharers) - 1;
      ptx::tma_load_multicast_2d(stage + first * kStageK * 2, &params_.x, full,
                                 static_cast<uint16_t>(sharers << place_.split * params_.sharers),
                                 k, walk_.m() + first);
    }
  }

  const Params& params_;
  SharedStorage<Config>& smem_;
  Place place_;
  FewWalk<Config>& walk_;
  RingState<Config::kXStages> ring_;
};

// By one thread: what the first loads of W need.
template <typename Config>
__device__ inline void set_up_full_barriers(SharedStorage<Config>& smem) {
#pragma unroll
  for (int stage = 0; stage < Config::kWStages; ++stage) ptx::mbarrier_init(&smem.w_full[stage], 1);
  ptx::fence_mbarrier_init();
}

// By another one: all others.
template <typename Config>
__device__ inline void set_up_other_barriers(const Params& params, SharedStorage<Config>& smem) {
#pragma unroll
  for (int stage = 0; stage < Config::kWStages; ++stage) {
    ptx::mbarrier_init(&smem.w_empty[stage], Config::kConsumers * kWarpgroup / 32);
  }
#pragma unroll
  for (int stage = 0; stage < Config::kXStages; ++stage) {
    ptx::mbarrier_init(&smem.x_full[stage], 1);
    ptx::mbarrier_init(&smem.x_empty[stage], Config::kConsumers * params.sharers);
  }
#pragma unroll
  for (int i = 0; i < Config::kConsumers; ++i) {
    ptx::mbarrier_init(&smem.inbox_full[i], 1);
    ptx::mbarrier_init(&smem.inbox_empty[i], 1 << params.split_shift);
  }
  ptx::fence_mbarrier_init();
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
