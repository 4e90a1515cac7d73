// The two rings in shared memory, of units of W and of boxes of X, and the threads that fill them:
// one each, so that none waits for the other's.
#pragma once

#include "cuda/ptx/bulk_load_policy.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma_2d.h"
#include "cuda/w4a16/sm90/wgmma/schedule.cuh"
#include "w4/packed_layout.h"

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

// Stages that are asked for before the first has come: enough to keep memory busy meanwhile. Were
// it all of them, every SM's first stage would wait behind the others' later ones.
constexpr int first_stages(int stage_bytes, int stages) {
  constexpr int kBytes = 32 << 10;
  const int enough = kBytes / stage_bytes > 2 ? kBytes / stage_bytes : 2;
  return enough < stages ? enough : stages;
}

// Of W: a unit of 64 columns for each warpgroup and 128 k.
template <typename Config>
class WeightProducer {
  static constexpr int kFirst = first_stages(Config::kWBytes, Config::kWStages);

 public:
  __device__ WeightProducer(const Params& params, SharedStorage<Config>& smem, Place place)
      : params_(params), smem_(smem), scheduler_(params, place, Config::kRows) {
    enter();
  }

  // The first stages, as soon as this thread has set up the barriers.
  __device__ void start() {
#pragma unroll 1
    for (int i = 0; i < kFirst && !done_; ++i) load();
  }

  __device__ void run() {
    if (done_) return;
    ptx::mbarrier_wait(&smem_.w_full[0], 0);
#pragma unroll 1
    while (!done_) {
      ptx::mbarrier_wait(&smem_.w_empty[ring_.stage], ring_.parity ^ 1);
      load();
    }
  }

 private:
  __device__ void load() {
    uint64_t* full = &smem_.w_full[ring_.stage];
    ptx::mbarrier_arrive_expect_tx(full, Config::kConsumers * params_.unit_bytes);
#pragma unroll 1
    for (int i = 0; i < Config::kConsumers; ++i) {
      // Columns that do not exist are given the last ones that do; D has no place for them.
      const int row = min(row_ + i, params_.weight_rows - 1);
      ptx::bulk_load(smem_.w[ring_.stage][i],
                     params_.weight + row * params_.row_bytes +
                         static_cast<int64_t>(unit_) * params_.unit_bytes,
                     params_.unit_bytes, full, params_.weight_policy);
    }
    ring_.advance();
    ++unit_;
    if (--left_ == 0) enter();
  }

  __device__ void enter() {
    Segment segment;
    done_ = !scheduler_.next(&segment) || segment.count == 0;
    if (done_) return;
    row_ = segment.column * Config::kConsumers;
    unit_ = segment.first, left_ = segment.count;
  }

  const Params& params_;
  SharedStorage<Config>& smem_;
  Scheduler scheduler_;
  RingState<Config::kWStages> ring_;
  bool done_;
  int row_ = 0, unit_ = 0, left_ = 0;
};

// Of X: 64 k of the tile's rows; each of the CTAs that share X sends all of them its part of the
// rows.
template <typename Config>
class ActivationProducer {
  static constexpr int kFirst = first_stages(Config::kXBytes, Config::kXStages);

 public:
  __device__ ActivationProducer(const Params& params, SharedStorage<Config>& smem, Place place)
      : params_(params), smem_(smem), place_(place), scheduler_(params, place, Config::kRows) {
    enter();
  }

  // Once the barriers of all CTAs of the cluster stand.
  __device__ void run() {
#pragma unroll 1
    for (int i = 0; i < kFirst && !done_; ++i) load();
    if (done_) return;
    ptx::mbarrier_wait(&smem_.x_full[0], 0);
#pragma unroll 1
    while (!done_) {
      ptx::mbarrier_wait(&smem_.x_empty[ring_.stage], ring_.parity ^ 1);
      load();
    }
  }

 private:
  __device__ void load() {
    uint64_t* full = &smem_.x_full[ring_.stage];
    ptx::mbarrier_arrive_expect_tx(full, Config::kXBytes);
    uint8_t* stage = smem_.x[ring_.stage];
    if (params_.sharers == 1) {
      ptx::tma_load_2d(stage, &params_.x, full, k_, m_);
    } else {
      const int first = Config::kRows / params_.sharers * place_.sharer;
      const uint32_t sharers = (1u << params_.sharers) - 1;
      ptx::tma_load_multicast_2d(stage + first * kStageK * 2, &params_.x, full,
                                 static_cast<uint16_t>(sharers << place_.split * params_.sharers),
                                 k_, m_ + first);
    }
    ring_.advance();
    k_ += kStageK;
    if (--left_ == 0) enter();
  }

  __device__ void enter() {
    Segment segment;
    done_ = !scheduler_.next(&segment) || segment.count == 0;
    if (done_) return;
    m_ = segment.m;
    k_ = segment.first * static_cast<int>(w4::kUnitK);
    left_ = segment.count * (static_cast<int>(w4::kUnitK) / kStageK);
  }

  const Params& params_;
  SharedStorage<Config>& smem_;
  Place place_;
  Scheduler scheduler_;
  RingState<Config::kXStages> ring_;
  bool done_;
  int m_ = 0, k_ = 0, left_ = 0;
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
