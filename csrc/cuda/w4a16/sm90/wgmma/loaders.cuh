// What a CTA's loading warps have in common: the walk over its units, and the warp that loads W.
#pragma once

#include "cuda/ptx/bulk_load_policy.h"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/group_arrive.h"
#include "cuda/tile/pipeline_state.cuh"
#include "cuda/w4a16/sm90/wgmma/schedule.cuh"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// What is the same in all lanes, so that the compiler knows it.
__device__ inline int same_in_warp(int x) { return __shfl_sync(~0u, x, 0); }

// The two warps walk over the units of a CTA in step with their lanes, one of which loads: what
// they count then stays in uniform registers, which a load takes its operands from.
template <typename Config>
class Walk {
 public:
  __device__ Walk(const Params& params, Place place)
      : scheduler_(params, place, Config::kRows), place_(place) {
    enter();
  }
  __device__ bool done() const { return left_ == 0; }
  __device__ int m() const { return m_; }
  __device__ int column() const { return column_; }
  __device__ int unit() const { return unit_; }
  __device__ Place place() const { return place_; }
  // As many of `units` as the tile has left.
  __device__ int within(int units) const { return units == 1 ? 1 : min(units, left_); }
  // Whether it has come to another tile.
  __device__ bool advance(int units = 1) {
    unit_ += units;
    left_ -= units;
    if (left_ > 0) return false;
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

// Of the sums that CTAs which share K send each other, in any Storage.
template <typename Config, typename Storage>
__device__ inline void set_up_inbox_barriers(const Params& params, Storage& smem) {
#pragma unroll
  for (int i = 0; i < Config::kConsumers; ++i) {
    ptx::mbarrier_init(&smem.inbox_full[i], 1);
    ptx::mbarrier_init(&smem.inbox_empty[i], 1 << params.split_shift);
  }
}

// By a warp: units of 64 columns of W, the next ones of `walk`.
template <typename Config, typename Storage>
class Weights {
 public:
  __device__ Weights(const Params& params, Storage& smem, Walk<Config>& walk)
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
    state_.parity = 1;
#pragma unroll 1
    while (!walk_.done()) {
      ptx::mbarrier_wait(&smem_.w_empty[state_.stage], state_.parity ^ 1);
      load();
    }
  }

 private:
  __device__ __forceinline__ void load() {
    const int units = walk_.within(Config::kStageUnits), bytes = units * params_.unit_bytes;
    if (ptx::elect_one()) {
      uint64_t* full = &smem_.w_full[state_.stage];
      ptx::mbarrier_arrive_expect_tx(full, Config::kConsumers * bytes);
      const uint8_t* from = from_;
#pragma unroll
      for (int i = 0; i < Config::kConsumers; ++i) {
        ptx::bulk_load(smem_.w[state_.stage][i], from, bytes, full, params_.weight_policy);
        // Columns that do not exist are given the last ones that do; D has no place for them.
        if (i + 1 < rows_) from += params_.row_bytes;
      }
    }
    __syncwarp();
    state_.advance();
    from_ += bytes;
    if (walk_.advance(units)) locate();
  }

  __device__ void locate() {
    // Of a cluster that shares X the last CTA's columns may all be none that exist.
    const int row = min(walk_.column() * Config::kConsumers, params_.weight_rows - 1);
    rows_ = params_.weight_rows - row;
    from_ = params_.weight + row * params_.row_bytes +
            static_cast<int64_t>(walk_.unit()) * params_.unit_bytes;
  }

  const Params& params_;
  Storage& smem_;
  Walk<Config>& walk_;
  PipelineState<Config::kWStages> state_;
  const uint8_t* from_;
  int rows_;  // of the tile's, that there are
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
