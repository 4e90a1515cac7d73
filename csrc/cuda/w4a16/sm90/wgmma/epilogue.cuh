// From a warpgroup's accumulators, which are a part of Y^T, to D: bias, activation, one rounding,
// a transposing store to shared memory and from there TMA's; first, where CTAs share K, an exchange
// of sums.
#pragma once

#include "cuda/ptx/gpu_flag.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/stmatrix_trans.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/tma_2d.h"
#include "cuda/tile/accumulators.cuh"
#include "cuda/tile/cluster_reduction.cuh"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/stream_k.cuh"
#include "cuda/w4a16/sm90/wgmma/schedule.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// Clusters that have later parts of the K of `segment`, the last that `cluster` has.
__device__ inline int parts_behind(const Params& params, const Segment& segment, uint32_t cluster) {
  uint32_t last = cluster;
  while (last > 0 && range_of(params, last).end < segment.end_of_k) --last;
  return static_cast<int>(cluster - last);
}

// Warps of their own raise flags and wait for them. They meet the warpgroups at these barriers, one
// for each: sums have been left; sums of others are there.
inline constexpr int kLeftBarrier = 8, kFoundBarrier = 12;

// Warpgroup `consumer` of CTA `place.sharer` of cluster `cluster`, among all of them.
template <typename Config>
__device__ inline int64_t warpgroup_of(const Params& params, Place place, uint32_t cluster,
                                       int consumer) {
  return (static_cast<int64_t>(cluster) * params.sharers + place.sharer) * Config::kConsumers +
         consumer;
}

// One for each consumer warpgroup. Where CTAs share K, each gets the sums of 64 / splits of the
// warpgroup's columns from the others, and adds them to its own in the order of their ranks: no
// global memory, no locks, and the same bits in every run.
template <typename T, typename Config>
class Epilogue {
  static constexpr int kRows = Config::kRows;

 public:
  // `inbox_full` and `inbox_empty` are this warpgroup's barriers, of 1 and `splits` arrivals.
  __device__ Epilogue(const Params& params, uint8_t* out, uint64_t* inbox_full,
                      uint64_t* inbox_empty, Place place, int consumer, int thread)
      : params_(params),
        out_(out),
        inbox_full_(inbox_full),
        inbox_empty_(inbox_empty),
        place_(place),
        consumer_(consumer),
        thread_(thread),
        strips_shift_(2 - params.split_shift) {}

  // Of the segment that is coming: early, since its bias is far away.
  __device__ void begin(const Segment& segment) {
    m_ = segment.m;
    column_ = segment.column * Config::kColumns + consumer_ * kWarpgroupColumns;
    if (params_.split_shift > 0) column_ += place_.split << (strips_shift_ + 4);
    if (params_.bias == nullptr) return;
    const T* bias = static_cast<const T*>(params_.bias);
    const int warp = thread_ / 32, strip = warp & ((1 << strips_shift_) - 1);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int column = min(column_ + strip * 16 + row * 8 + thread_ % 32 / 4, params_.n - 1);
      bias_[row] = static_cast<float>(bias[column * params_.bias_stride]);
    }
  }

  // acc: [64, kRows] in wgmma's layout, the sums of `segment`, which `scheduler` gave last.
  __device__ void store(float (&acc)[kRows / 2], const Segment& segment,
                        const Scheduler& scheduler) {
    if constexpr (Config::kMaySplit) {
      if (params_.split_shift > 0) return store_slice(acc, scheduler.done());
    }
    if (params_.stream_k) {
      if (segment.first > 0) return leave(acc, scheduler.cluster());
      complete(acc, segment, scheduler.cluster());
    }
    if (thread_ == 0) ptx::bulk_wait_group_read<0>();  // the last tile's store
    ptx::named_barrier_sync(1 + consumer_, kWarpgroup);
    lay_out(acc, out_);
    publish();
    write(out_);
  }

  // Shared memory must outlive the stores.
  __device__ void finish() const {
    if (thread_ == 0) ptx::bulk_wait_group_read<0>();
  }

 private:
  // What CTA `sharer` of cluster `cluster` leaves for others: 16 bytes for each thread, kRows / 8
  // times; and the flag that it is there.
  __device__ float4* partials(uint32_t cluster) const {
    const int64_t warpgroup = warpgroup_of<Config>(params_, place_, cluster, consumer_);
    return params_.partials + warpgroup * (kRows / 8 * kWarpgroup) + thread_;
  }

  __device__ void leave(const float (&acc)[kRows / 2], uint32_t cluster) const {
    leave_sums(partials(cluster), kWarpgroup, acc);
    ptx::named_barrier_arrive(kLeftBarrier + consumer_, kWarpgroup + 32);
  }

  // Adds what others have of the tile, in the order of k: all flags are waited for at once, and
  // several parts are on their way together. The others had theirs before anything else, so that
  // they are there by now. A flag is taken down again: in a graph the next launch has the same
  // nonce.
  __device__ void complete(float (&acc)[kRows / 2], const Segment& segment,
                           uint32_t cluster) const {
    const int parts = parts_behind(params_, segment, cluster);
    if (parts == 0) return;
    ptx::named_barrier_sync(kFoundBarrier + consumer_, kWarpgroup + 32);
    constexpr int kSpare = Config::kConsumerRegisters - kRows / 2;
    constexpr int kRegisters = Config::kConsumerRegisters < 160 ? 32 : kSpare < 160 ? 64 : 128;
    constexpr int kTogether = kRegisters > kRows / 2 ? kRegisters / (kRows / 2) : 1;
#pragma unroll 1
    for (int first = 0; first < parts; first += kTogether) {
      float4 x[kTogether][kRows / 8];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float4* from = partials(cluster - 1 - min(first + i, parts - 1));
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) x[i][j] = ptx::ld_global_cg(from + j * kWarpgroup);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + i >= parts) break;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) add_quad(acc, j, x[i][j]);
      }
    }
  }

  // Where CTAs share K, each finishes some strips of 16 columns: a warp keeps its sums or sends
  // them.
  __device__ void store_slice(float (&acc)[kRows / 2], bool last) {
    uint8_t* slice = out_ + Config::kInboxBytes;
    if (thread_ == 0) {
      ptx::bulk_wait_group_read<0>();  // the last slice's store
      constexpr int kBytes = kRows * kWarpgroupColumns * 4;
      ptx::mbarrier_arrive_expect_tx(inbox_full_, kBytes - (kBytes >> params_.split_shift));
    }
    // All have read what they got last time. (Before the first, nothing is in the way.)
    if (started_) ptx::mbarrier_wait(inbox_empty_, parity_ ^ 1);
    started_ = true;
    const int receiver = thread_ / 32 >> strips_shift_;
    if (receiver != place_.split) {
      send(acc, receiver);
    } else {
      ptx::mbarrier_wait(inbox_full_, parity_);
      receive(acc);
      lay_out(acc, slice);
    }
    parity_ ^= 1;
    publish();
    // Not after the last: nobody waits for it, and the other CTA may be gone.
    if (!last && thread_ < 1 << params_.split_shift) {
      ptx::mbarrier_arrive_cluster(inbox_empty_, thread_ * params_.sharers + place_.sharer);
    }
    write(slice);
  }

  // The inbox: [sender][strip of the slice][8 rows of X][lane] of 16 bytes, a lane's part of a 16x8
  // block of Y^T.
  __device__ float4* inbox(int sender) const {
    const int strip = thread_ / 32 & ((1 << strips_shift_) - 1);
    return reinterpret_cast<float4*>(out_) +
           ((sender << strips_shift_) + strip) * (kRows / 8 * 32) + thread_ % 32;
  }

  __device__ void send(const float (&acc)[kRows / 2], int receiver) const {
    const float4* mine = inbox(place_.split - (place_.split > receiver));
    const int rank = receiver * params_.sharers + place_.sharer;
    const uint32_t to = ptx::mapa(ptx::smem_address(mine), rank);
    const uint32_t signal = ptx::mapa(ptx::smem_address(inbox_full_), rank);
    send_quads<0, kRows / 8>(to, 32 * 16, signal, acc);
  }

  __device__ void receive(float (&acc)[kRows / 2]) const {
    const int senders = (1 << params_.split_shift) - 1;
#pragma unroll 1
    for (int sender = 0; sender < senders; ++sender) {
      add_received_quads<0, kRows / 8>(acc, inbox(sender), 32);
    }
  }

  // A warp's columns, as they are stored.
  __device__ void lay_out(float (&acc)[kRows / 2], uint8_t* staging) const {
    if (params_.bias != nullptr) [[unlikely]]
      add_to_rows(acc, bias_[0], bias_[1]);
    if (params_.activation != Activation::kNone) [[unlikely]]
      activate_in_turns<4>(params_.activation, acc);
    const int lane = thread_ % 32, strip = thread_ / 32 & ((1 << strips_shift_) - 1);
    uint8_t* to = staging + position(lane / 16 * 8 + lane % 8, strip * 2 + lane / 8 % 2);
    const int step = kWarpgroupColumns * 2 * 8 >> params_.split_shift;  // of 8 rows of X
#pragma unroll
    for (int j = 0; j < kRows / 8; j += 2) {
      const float* x = acc + 4 * j;
      ptx::stmatrix_x4_trans(to + j * step, pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]),
                             pack2<T>(x[4], x[5]), pack2<T>(x[6], x[7]));
    }
  }

  // What was staged, to the warpgroup and to TMA.
  __device__ void publish() const {
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(1 + consumer_, kWarpgroup);
  }

  // Where the 16-byte chunk `chunk` of a row lies: the swizzle of TMA for rows of 128, 64 or 32
  // bytes, which also spares stmatrix bank conflicts.
  __device__ int position(int row, int chunk) const {
    const int chunks_shift = strips_shift_ + 1;
    const int swizzle = row >> params_.split_shift & ((1 << chunks_shift) - 1);
    return (row << chunks_shift | (chunk ^ swizzle)) << 4;
  }

  // This CTA's slice of the warpgroup's columns.
  __device__ void write(const uint8_t* staging) const {
    if (!params_.tma_store) [[unlikely]] {
      write_elements(staging);
    } else if (thread_ == 0) {
      if (column_ < params_.n) ptx::tma_store_2d(&params_.d, staging, column_, m_);
      ptx::bulk_commit_group();
    }
  }

  // Neighbouring threads write neighbours along the dimension of D that is contiguous.
  __device__ void write_elements(const uint8_t* staging) const {
    if (params_.d_col_stride == 1) return write_pairs(staging);
    T* d = static_cast<T*>(params_.d_data);
    const bool by_column = params_.d_row_stride == 1;
    const int columns_shift = strips_shift_ + 4;
#pragma unroll 1
    for (int i = thread_; i < kRows << columns_shift; i += kWarpgroup) {
      const int r = by_column ? i % kRows : i >> columns_shift;
      const int c = by_column ? i / kRows : i & ((1 << columns_shift) - 1);
      if (m_ + r < params_.m && column_ + c < params_.n) {
        d[(m_ + r) * params_.d_row_stride + (column_ + c) * params_.d_col_stride] =
            *reinterpret_cast<const T*>(staging + position(r, c / 8) + c % 8 * 2);
      }
    }
  }

  // A thread has two columns of every so many rows: 4 bytes where a row begins at a multiple of
  // them. Several rows are on their way together: what each waits for is shared memory.
  __device__ void write_pairs(const uint8_t* staging) const {
    const int pairs_shift = strips_shift_ + 3;
    const int pair = thread_ & ((1 << pairs_shift) - 1), columns = params_.n - column_ - 2 * pair;
    const int step = kWarpgroup >> pairs_shift, rows = min(kRows, params_.m - m_);
    int row = thread_ >> pairs_shift;
    auto* to = static_cast<uint16_t*>(params_.d_data) + (m_ + row) * params_.d_row_stride +
               column_ + 2 * pair;
#pragma unroll 4
    for (; row < rows; row += step) {
      const uint32_t two =
          *reinterpret_cast<const uint32_t*>(staging + position(row, pair / 4) + pair % 4 * 4);
      const bool whole = columns > 1 && reinterpret_cast<uintptr_t>(to) % 4 == 0;
      if (whole) *reinterpret_cast<uint32_t*>(to) = two;
      if (!whole && columns > 0) to[0] = static_cast<uint16_t>(two);
      if (!whole && columns > 1) to[1] = static_cast<uint16_t>(two >> 16);
      to += step * params_.d_row_stride;
    }
  }

  const Params& params_;
  uint8_t* out_;
  uint64_t *inbox_full_, *inbox_empty_;
  Place place_;
  int consumer_, thread_;
  int strips_shift_;  // 1 << this: strips of 16 columns that this CTA stores for the warpgroup
  int m_ = 0, column_ = 0;
  float bias_[2] = {};
  uint32_t parity_ = 0;
  bool started_ = false;
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
