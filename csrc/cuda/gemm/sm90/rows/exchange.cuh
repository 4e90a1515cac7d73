// From the accumulators of the CTAs that share K to D: every CTA sends each of the others its
// partial sums of that CTA's slice of rows, adds what it gets in the order of the ranks, and writes
// its slice. No global memory, no locks, and the same bits in every run.
#pragma once

#include "common/activation.h"
#include "cuda/gemm/sm90/rows/params.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/st_async.h"
#include "cuda/tile/convert.cuh"

namespace xgemm::cuda::gemm::sm90::rows {

inline constexpr int kWarpgroup = 128;

// Where a warpgroup's [64, kRound] partial sums lie in the receiver: for each source rank its
// slice of 64 / splits rows, cut in groups of 8 columns. A group holds 8 lines, one for each row
// modulo 8, of the 8 columns (of both 8-row halves of a warp's fragment, unless splits is 8, where
// they have different receivers), then as much padding as a line: both the vector writes of the
// fragments and the reads down the lines are free of bank conflicts.
template <int kRound>
struct Inbox {
  alignas(16) float data[kRound / 8 * 64 * 9];
};

struct Block {         // of D'
  int wide, wide_end;  // the first of 64 rows, and where those that count end
  int narrow, batch;
};

template <typename T, int kColumns, int kRound>
class Exchange {
 public:
  static constexpr int kRounds = kColumns / kRound;
  static_assert(kColumns % kRound == 0 && kRound % 8 == 0, "rounds are whole groups of columns");

  // `received` and `drained` are this warpgroup's barriers, of 1 and `splits` arrivals.
  __device__ Exchange(const Params& params, Inbox<kRound>* inbox, uint64_t* received,
                      uint64_t* drained, int cta_rank, int barrier_id, int thread)
      : params_(params),
        inbox_(inbox),
        received_(received),
        drained_(drained),
        rank_(cta_rank),
        barrier_id_(barrier_id),
        thread_(thread),
        line_shift_(params.splits == 8 ? 3 : 4),
        slice_(kRound / 8 * 64 * 9 >> params.split_shift) {}

  // acc: the partial sums of the block, in wgmma's layout. `last`: no more calls.
  __device__ void reduce(const float (&acc)[kColumns / 2], Block block, bool last) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const float* sums = acc + round * (kRound / 2);
      const bool again = !last || round + 1 < kRounds;
      if (params_.splits == 1) {
        keep(sums);
        ptx::named_barrier_sync(barrier_id_, kWarpgroup);
      } else {
        receive(sums);
      }
      add_and_store(block.wide + rank_ * (64 >> params_.split_shift), block.wide_end,
                    block.narrow + round * kRound, block.batch);
      if (!again) continue;
      ptx::named_barrier_sync(barrier_id_, kWarpgroup);  // all have read
      // Not after the last: nobody waits for it, and the other CTA may be gone.
      if (params_.splits > 1 && thread_ < params_.splits) {
        ptx::mbarrier_arrive_cluster(drained_, thread_);
      }
    }
  }

 private:
  static constexpr int kGroups = kRound / 8;

  // Sends the partial sums, and waits for those of the others.
  __device__ void receive(const float* sums) {
    if (thread_ == 0) ptx::mbarrier_arrive_expect_tx(received_, 64 * kRound * sizeof(float));
    // All have read what they got last time. (Before the first, nothing is in the way.)
    if (started_) ptx::mbarrier_wait(drained_, parity_ ^ 1);
    started_ = true;
    send(sums);
    ptx::mbarrier_wait(received_, parity_);
    parity_ ^= 1;
  }

  // Where no other CTA has a part: into this one's inbox.
  __device__ void keep(const float* acc) const {
    const int warp = thread_ / 32, lane = thread_ % 32;
    auto* to = reinterpret_cast<float4*>(inbox_->data + warp * kGroups * 9 * 16 + lane * 4);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      to[j * 9 * 4] = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
    }
  }

  __device__ void send(const float* acc) const {
    const int warp = thread_ / 32, lane = thread_ % 32;
    const uint32_t inbox = ptx::smem_address(inbox_->data);
    const uint32_t barrier = ptx::smem_address(received_);
    if (params_.splits == 8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int cta = 2 * warp + half;
        const uint32_t to = ptx::mapa(inbox + (rank_ * slice_ + lane * 2) * 4, cta);
        const uint32_t signal = ptx::mapa(barrier, cta);
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          const float* x = acc + 4 * j + 2 * half;
          ptx::st_async_v2(to + j * 9 * 8 * 4, signal, x[0], x[1]);
        }
      }
    } else {
      const int shift = 2 - params_.split_shift;  // 1 << shift warps have one receiver
      const int cta = warp >> shift;
      const int first = rank_ * slice_ + (warp & ((1 << shift) - 1)) * kGroups * 9 * 16;
      const uint32_t to = ptx::mapa(inbox + (first + lane * 4) * 4, cta);
      const uint32_t signal = ptx::mapa(barrier, cta);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const float* x = acc + 4 * j;
        ptx::st_async_v4(to + j * 9 * 16 * 4, signal, x[0], x[1], x[2], x[3]);
      }
    }
  }

  // A thread takes 8 rows of one column.
  __device__ void add_and_store(int wide, int wide_end, int narrow, int batch) const {
    T* d = static_cast<T*>(params_.d) + batch * params_.d_batch_stride;
#pragma unroll 1
    for (int unit = thread_; unit < kRound * 8 >> params_.split_shift; unit += kWarpgroup) {
      const int line = 1 << line_shift_, in_line = unit & (line - 1), group = unit >> line_shift_;
      const float* source = inbox_->data + group * 9 * line + in_line;
      float sum[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = source[i * line];
#pragma unroll 1
      for (int rank = 1; rank < params_.splits; ++rank) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] += source[rank * slice_ + i * line];
      }
      const int half = line == 16 ? in_line / 2 % 2 : 0;
      const int pair = line == 16 ? in_line / 4 : in_line / 2;
      const int row = wide + group / kGroups * 16 + half * 8;
      const int column = narrow + group % kGroups * 8 + pair * 2 + in_line % 2;
      if (column < params_.narrow_extent && row < wide_end) {
        finish(sum, row, column);
        store(d + row * params_.d_wide_stride + column * params_.d_narrow_stride, sum,
              wide_end - row);
      }
    }
  }

  __device__ void finish(float (&sum)[8], int row, int column) const {
    if (params_.bias != nullptr) {
      const T* bias = static_cast<const T*>(params_.bias) + column * params_.bias_narrow_stride;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int clamped = min(row + i, params_.wide_extent - 1);
        sum[i] += static_cast<float>(bias[clamped * params_.bias_wide_stride]);
      }
    }
    if (params_.activation == Activation::kNone) return;
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {  // in turns through sum[0]: one copy of the code of activate
      const float x = activate(params_.activation, sum[0]);
#pragma unroll
      for (int j = 0; j < 7; ++j) sum[j] = sum[j + 1];
      sum[7] = x;
    }
  }

  __device__ void store(T* d, const float (&sum)[8], int rows) const {
    alignas(16) T rounded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) rounded[i] = round_to<T>(sum[i]);
    if (params_.vector_store && rows >= 8) {
      *reinterpret_cast<uint4*>(d) = *reinterpret_cast<const uint4*>(rounded);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < rows) d[i * params_.d_wide_stride] = rounded[i];
    }
  }

  const Params& params_;
  Inbox<kRound>* inbox_;
  uint64_t *received_, *drained_;
  int rank_, barrier_id_, thread_;
  int line_shift_, slice_;  // floats
  uint32_t parity_ = 0;
  bool started_ = false;
};

}  // namespace xgemm::cuda::gemm::sm90::rows
