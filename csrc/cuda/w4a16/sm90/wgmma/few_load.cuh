// Shared memory of tiles whose stages hold W and X of 128 k, and the two warps that fill it.
#pragma once

#include "cuda/ptx/bulk_load_policy.h"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/tma.h"
#include "cuda/w4a16/sm90/wgmma/few_sums.cuh"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// A stage is 128 k: the units of the tile's columns, and two boxes of X. Its barriers are those of
// the weights' ring, which the warps that load W and X both keep.
template <typename Config>
struct FewStorage {
  alignas(1024) uint8_t x[Config::kWStages][2][Config::kXBytes];
  alignas(1024) uint8_t out[Config::kConsumers][Config::kOutBytes];
  alignas(128) uint8_t w[Config::kWStages][Config::kConsumers][kUnitSlot];
  // Of warpgroups that share K: [8 rows of X][thread] each.
  float4 sums[Config::kConsumers][Config::kSumsSlots][Config::kSumsOfPart];
  XSums<Config::kXSums ? Config::kRows : 16> x_sums[Config::kXSums ? Config::kWStages : 1];
  uint64_t w_full[Config::kWStages], w_empty[Config::kWStages];
  uint64_t sums_full[Config::kXSums ? Config::kWStages : 1];
  uint64_t inbox_full[Config::kConsumers], inbox_empty[Config::kConsumers];
};
template <typename Config>
inline constexpr int kFewSmemBytes = sizeof(FewStorage<Config>) + 1024;  // + alignment

// What is the same in all lanes, so that the compiler knows it.
__device__ inline int same_in_warp(int x) { return __shfl_sync(~0u, x, 0); }

// The two warps walk over the units of a CTA in step with their lanes, one of which loads: what
// they count then stays in uniform registers, which a load takes its operands from.
template <typename Config>
class FewWalk {
 public:
  __device__ FewWalk(const Params& params, Place place)
      : scheduler_(params, place, Config::kRows), place_(place) {
    enter();
  }
  __device__ bool done() const { return left_ == 0; }
  __device__ int m() const { return m_; }
  __device__ int column() const { return column_; }
  __device__ int unit() const { return unit_; }
  __device__ Place place() const { return place_; }
  // Whether it has come to another tile.
  __device__ bool advance() {
    ++unit_;
    if (--left_ > 0) return false;
    enter();
    return true;
  }

 private:
  __device__ void enter() {
    Segment segment;
    left_ = 0;
    if (!scheduler_.next(&segment)) return;
    m_ = same_in_warp(segment.m), column_ = same_in_warp(segment.column);
    unit_ = same_in_warp(segment.first), left_ = same_in_warp(segment.count);
  }

  Scheduler scheduler_;
  Place place_;
  int m_ = 0, column_ = 0, unit_ = 0, left_ = 0;
};

// By a warp: units of 64 columns of W, the next ones of `walk`.
template <typename Config, typename Storage>
class FewWeights {
 public:
  __device__ FewWeights(const Params& params, Storage& smem, FewWalk<Config>& walk)
      : params_(params), smem_(smem), walk_(walk) {
    locate();
  }

  // All stages, at once. (To ask for 32 KB before the first has come, and only then for the rest,
  // made 16 and 32 rows of small layers 4 to 10 % slower; from 96 rows on no difference.)
  __device__ void start() {
#pragma unroll 1
    for (int i = 0; i < Config::kWStages && !walk_.done(); ++i) load();
  }

  // The rest.
  __device__ void run() {
    ring_.parity = 1;
#pragma unroll 1
    while (!walk_.done()) {
      ptx::mbarrier_wait(&smem_.w_empty[ring_.stage], ring_.parity ^ 1);
      load();
    }
  }

 private:
  __device__ __forceinline__ void load() {
    if (ptx::elect_one()) {
      uint64_t* full = &smem_.w_full[ring_.stage];
      ptx::mbarrier_arrive_expect_tx(full, Config::kConsumers * params_.unit_bytes);
      const uint8_t* from = from_;
#pragma unroll
      for (int i = 0; i < Config::kConsumers; ++i) {
        ptx::bulk_load(smem_.w[ring_.stage][i], from, params_.unit_bytes, full,
                       params_.weight_policy);
        // Columns that do not exist are given the last ones that do; D has no place for them.
        if (i + 1 < rows_) from += params_.row_bytes;
      }
    }
    __syncwarp();
    ring_.advance();
    from_ += params_.unit_bytes;
    if (walk_.advance()) locate();
  }

  __device__ void locate() {
    const int row = walk_.column() * Config::kConsumers;
    rows_ = params_.weight_rows - row;
    from_ = params_.weight + row * params_.row_bytes +
            static_cast<int64_t>(walk_.unit()) * params_.unit_bytes;
  }

  const Params& params_;
  Storage& smem_;
  FewWalk<Config>& walk_;
  RingState<Config::kWStages> ring_;
  const uint8_t* from_;
  int rows_;  // of the tile's, that there are
};

// By a warp: X of the same stages.
template <typename Config>
class FewActivations {
 public:
  __device__ FewActivations(const Params& params, FewStorage<Config>& smem, FewWalk<Config>& walk)
      : params_(params), smem_(smem), walk_(walk) {}

  __device__ void start() {
#pragma unroll 1
    for (int i = 0; i < Config::kWStages && !walk_.done(); ++i) load();
  }

  __device__ void run() {
    ring_.parity = 1;
#pragma unroll 1
    while (!walk_.done()) {
      ptx::mbarrier_wait(&smem_.w_empty[ring_.stage], ring_.parity ^ 1);
      load();
    }
  }

 private:
  __device__ __forceinline__ void load() {
    if (ptx::elect_one()) {
      uint64_t* full = &smem_.w_full[ring_.stage];
      ptx::mbarrier_arrive_expect_tx(full, 2 * Config::kXBytes);
      const int unit = walk_.unit();
      if (params_.x_boxes == 2) {
        ptx::tma_load_3d(smem_.x[ring_.stage][0], &params_.x, full, 0, walk_.m(), 2 * unit);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ptx::tma_load_3d(smem_.x[ring_.stage][half], &params_.x, full,
                           (2 * unit + half) * kStageK, walk_.m(), 0);
        }
      }
    }
    __syncwarp();
    ring_.advance();
    walk_.advance();
  }

  const Params& params_;
  FewStorage<Config>& smem_;
  FewWalk<Config>& walk_;
  RingState<Config::kWStages> ring_;
};

// By one thread: what the first loads need.
template <typename Config>
__device__ inline void set_up_full_barriers(FewStorage<Config>& smem) {
#pragma unroll
  for (int stage = 0; stage < Config::kWStages; ++stage) ptx::mbarrier_init(&smem.w_full[stage], 2);
  ptx::fence_mbarrier_init();
}

// By another one: all others. At this barrier the warp that loads W, which goes on before they
// stand, waits for them.
inline constexpr int kSetUpBarrier = 7;
template <typename Config>
__device__ inline void set_up_other_barriers(const Params& params, FewStorage<Config>& smem) {
#pragma unroll
  for (int stage = 0; stage < Config::kWStages; ++stage) {
    ptx::mbarrier_init(&smem.w_empty[stage], Config::kConsumers);
    if constexpr (Config::kXSums) ptx::mbarrier_init(&smem.sums_full[stage], 1);
  }
#pragma unroll
  for (int i = 0; i < Config::kConsumers; ++i) {
    ptx::mbarrier_init(&smem.inbox_full[i], 1);
    ptx::mbarrier_init(&smem.inbox_empty[i], 1 << params.split_shift);
  }
  ptx::fence_mbarrier_init();
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
