// From the accumulators of the CTAs that share K to D: some columns of a tile are one CTA's to
// finish or, where it has few columns, each 16 rows of it, or 8 where 8 CTAs share it. The warps of
// the others that have a part of them send it there; the warp that finishes them adds what it gets
// to its own part, in the order of the ranks, and stores. No global memory, no locks, and the same
// bits in every run.
#pragma once

#include "cuda/gemm/sm90/skinny/params.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/st_async.h"
#include "cuda/ptx/stmatrix_trans.h"
#include "cuda/tile/accumulators.cuh"
#include "cuda/tile/cluster_reduction.cuh"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::gemm::sm90::skinny {

struct Block {         // of D'
  int wide, wide_end;  // the first of 64 rows, and where those that count end
  int narrow, batch;
};

// A warp's own: columns of 16 rows.
template <typename T, int kColumns>
struct Staging {
  alignas(16) T data[staged_columns(kColumns) * kStagingPitch];
};

template <typename T, int kColumns>
class ClusterReduction {
 public:
  // `inbox`, `received` and `drained` are this warpgroup's: where the others' parts arrive, its
  // barrier, of one arrival, and that of all warps that finish rows. `staging` is this warp's.
  __device__ ClusterReduction(const Params& params, float* inbox, Staging<T, kColumns>& staging,
                              uint64_t* received, uint64_t* drained, int rank, int warp, int lane)
      : params_(params),
        inbox_(inbox),
        staging_(staging.data),
        received_(received),
        drained_(drained),
        rank_(rank),
        warp_(warp),
        lane_(lane) {}

  // acc: the partial sums of the block, in wgmma's layout. `last`: no more calls.
  __device__ void reduce(float (&acc)[kColumns / 2], const Block& block, bool last) {
    int row = block.wide + warp_ * 16, row_end = block.wide_end;
    Columns columns{0, kColumns};
    if (params_.splits > 1) {
      if (finishes_columns(kColumns, params_.splits)) {
        columns = reduce_columns(acc, last);
      } else {
        const bool halves = params_.splits == 8;  // a warp's rows have two receivers
        const bool finishes = halves ? reduce_halves(acc, last) : reduce_rows(acc, last);
        if (!finishes) row_end = row;
        if (halves) {
          row += rank_ % 2 * 8;
          row_end = min(row + 8, row_end);
        }
      }
      started_ = true;
      parity_ ^= 1;
    }
    if (row < row_end) finish_and_store(acc, columns, row, row_end, block);
  }

 private:
  static constexpr int kGroups = kColumns / 8;
  static constexpr int kGroupFloats = 128;  // 16 rows of eight columns

  struct Columns {
    int first, count;
  };

  // Where what this CTA sends lies in the inbox of `owner`, which has none for its own.
  __device__ int slot_at(int owner) const { return rank_ < owner ? rank_ : rank_ - 1; }

  // Until `floats` of the others are there. `expects`: in one of the warps that wait.
  __device__ void receive(bool expects, int floats) {
    if (expects && lane_ == 0) {
      ptx::mbarrier_arrive_expect_tx(received_, floats * static_cast<int>(sizeof(float)));
    }
    ptx::mbarrier_wait(received_, parity_);
  }

  // Of this CTA's rows, one slice from each of the others.
  __device__ int floats_of_rows() const { return (64 - (64 >> params_.split_shift)) * kColumns; }

  // To all: this warp has read what it got. Not after the last tile: nobody waits for it, and the
  // other CTAs may be gone.
  __device__ void signal_drained() const {
    __syncwarp();
    if (lane_ < params_.splits) ptx::mbarrier_arrive_cluster(drained_, lane_);
  }

  // Until all have read what they got for the tile before. (Before the first, nothing is in the
  // way.)
  __device__ void wait_drained() const {
    if (started_) ptx::mbarrier_wait(drained_, parity_ ^ 1);
  }

  // Of each eight columns, those of the CTA `owner` begin here.
  __device__ int first_group(int owner) const { return kGroups * owner >> params_.split_shift; }

  // Sends the columns that others finish, and adds what they have of those of this CTA, which are
  // the first of acc then.
  __device__ Columns reduce_columns(float (&acc)[kColumns / 2], bool last) {
    const int most = most_groups(kColumns, params_.splits);
    wait_drained();
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int owner = (((j + 1) << params_.split_shift) - 1) / kGroups;
      if (owner == rank_) continue;
      const int group = (slot_at(owner) * 4 + warp_) * most + j - first_group(owner);
      const uint32_t to = ptx::smem_address(inbox_ + group * kGroupFloats + lane_ * 4);
      const float* x = acc + 4 * j;
      ptx::st_async_v4(ptx::mapa(to, owner), ptx::mapa(ptx::smem_address(received_), owner), x[0],
                       x[1], x[2], x[3]);
    }
    const int first = first_group(rank_), count = first_group(rank_ + 1) - first;
    move_to_front(acc, first);
    receive(warp_ == 0, (params_.splits - 1) * count * 4 * kGroupFloats);
#pragma unroll 1
    for (int slot = 0; slot < params_.splits - 1; ++slot) {
      const float* from = inbox_ + (slot * 4 + warp_) * most * kGroupFloats + lane_ * 4;
#pragma unroll
      for (int j = 0; j < kGroups / 2; ++j) {
        if (j >= count) break;
        // Not add_quad: the code of the loop with its way out would be another.
        const float4 x = *reinterpret_cast<const float4*>(from + j * kGroupFloats);
        acc[4 * j] += x.x, acc[4 * j + 1] += x.y;
        acc[4 * j + 2] += x.z, acc[4 * j + 3] += x.w;
      }
    }
    if (!last) signal_drained();
    return {first * 8, count * 8};
  }

  // Half of the groups, from `first` on, become the first ones, in steps of a power of two: a
  // register's number is no variable.
  template <int kStep = 8>
  __device__ static void move_to_front(float (&acc)[kColumns / 2], int first) {
    constexpr int kRest = kGroups - kStep, kNeeded = kGroups / 2 + kStep;
    constexpr int kMoved = kRest < kNeeded ? kRest : kNeeded;
    if (kMoved > 0 && (first & kStep) != 0) {
#pragma unroll
      for (int i = 0; i < 4 * kMoved; ++i) acc[i] = acc[i + 4 * kStep];
    }
    if constexpr (kStep > 1) move_to_front<kStep / 2>(acc, first);
  }

  // Sends the warp's 16 rows where they are finished or, true, adds those of the others.
  __device__ bool reduce_rows(float (&acc)[kColumns / 2], bool last) {
    const int shift = 2 - params_.split_shift;  // 1 << shift warps have one receiver
    const int owner = warp_ >> shift, local = warp_ & ((1 << shift) - 1);
    if (owner != rank_) {
      wait_drained();
      const int first = ((slot_at(owner) << shift) + local) * kGroups * 128 + lane_ * 4;
      const uint32_t to = ptx::mapa(ptx::smem_address(inbox_ + first), owner);
      const uint32_t signal = ptx::mapa(ptx::smem_address(received_), owner);
      send_quads<0, kGroups>(to, kGroupFloats * 4, signal, acc);
      return false;
    }
    receive(local == 0, floats_of_rows());
#pragma unroll 1
    for (int slot = 0; slot < params_.splits - 1; ++slot) {
      const float* from = inbox_ + ((slot << shift) + local) * kGroups * kGroupFloats + lane_ * 4;
      add_received_quads<0, kGroups>(acc, reinterpret_cast<const float4*>(from), kGroupFloats / 4);
    }
    if (!last) signal_drained();
    return true;
  }

  // The same of 8 rows for each of 8 CTAs; those that are added are the first 8 of acc then.
  __device__ bool reduce_halves(float (&acc)[kColumns / 2], bool last) {
    wait_drained();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int owner = 2 * warp_ + half;
      if (owner == rank_) continue;
      const int first = slot_at(owner) * kGroups * 64 + lane_ * 2;
      const uint32_t to = ptx::mapa(ptx::smem_address(inbox_ + first), owner);
      const uint32_t signal = ptx::mapa(ptx::smem_address(received_), owner);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const float* x = acc + 4 * j + 2 * half;
        ptx::st_async_v2(to + j * 64 * 4, signal, x[0], x[1]);
      }
    }
    if (rank_ / 2 != warp_) return false;
    receive(true, floats_of_rows());
    const bool upper = rank_ % 2 != 0;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (upper) acc[4 * j] = acc[4 * j + 2], acc[4 * j + 1] = acc[4 * j + 3];
    }
#pragma unroll 1
    for (int slot = 0; slot < 7; ++slot) {
      const float* from = inbox_ + slot * kGroups * 64 + lane_ * 2;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const float2 x = *reinterpret_cast<const float2*>(from + j * 64);
        acc[4 * j] += x.x, acc[4 * j + 1] += x.y;
      }
    }
    if (!last) signal_drained();
    return true;
  }

  // Of 16 rows of D' from `row` on those before row_end; acc has `columns` first.
  __device__ void finish_and_store(float (&acc)[kColumns / 2], Columns columns, int row,
                                   int row_end, const Block& block) const {
    const int narrow = block.narrow + columns.first;
    if (params_.bias != nullptr) [[unlikely]]
      add_bias(acc, row, narrow);
    if (params_.activation != Activation::kNone) [[unlikely]]
      activate_all(acc);
    constexpr int kStaged = staged_columns(kColumns), kPitch = kStagingPitch;
    const int matrix = lane_ / 8;
    T* to = staging_ + (matrix / 2 * 8 + lane_ % 8) * kPitch + matrix % 2 * 8;
    // 8 rows of each column are 16 bytes; two lanes write 32 together.
    const int at_row = row + lane_ % 2 * 8, at_column = narrow + lane_ / 2;
    const T* from = staging_ + lane_ / 2 * kPitch + lane_ % 2 * 8;
    T* d = static_cast<T*>(params_.d) + block.batch * params_.d_batch_stride +
           at_row * params_.d_wide_stride + at_column * params_.d_narrow_stride;
#pragma unroll
    for (int first = 0; first < kColumns; first += kStaged) {
      if (first >= columns.count) break;
      __syncwarp();  // what was staged before has been read
#pragma unroll
      for (int j = first / 8; j < min(first + kStaged, kColumns) / 8; j += 2) {
        const float* x = acc + 4 * j;
        const float* y = j + 1 < kGroups ? x + 4 : x;  // of an odd number the last one twice
        ptx::stmatrix_x4_trans(to + (j * 8 - first) * kPitch, pack2<T>(x[0], x[1]),
                               pack2<T>(x[2], x[3]), pack2<T>(y[0], y[1]), pack2<T>(y[2], y[3]));
      }
      __syncwarp();
#pragma unroll
      for (int i = first; i < min(first + kStaged, kColumns); i += 16) {
        const bool exists = lane_ / 2 < columns.count - i;
        const int rows = exists && at_column + i < params_.narrow_extent ? row_end - at_row : 0;
        if (params_.vector_store && rows >= 8) [[likely]] {
          *reinterpret_cast<uint4*>(d) =
              *reinterpret_cast<const uint4*>(from + (i - first) * kPitch);
        } else {
          store_elements(d, from + (i - first) * kPitch, rows);
        }
        d += 16 * params_.d_narrow_stride;
      }
    }
  }

  // Of 8 rows of a column those that exist.
  __device__ void store_elements(T* d, const T* from, int rows) const {
#pragma unroll 1
    for (int i = 0; i < min(rows, 8); ++i) d[i * params_.d_wide_stride] = from[i];
  }

  __device__ void add_bias(float (&acc)[kColumns / 2], int row, int narrow) const {
    const T* bias = static_cast<const T*>(params_.bias);
    if (params_.bias_narrow_stride == 0) {
      const auto of_row = [&](int i) {
        const int64_t at = min(row + i, params_.wide_extent - 1);
        return static_cast<float>(bias[at * params_.bias_wide_stride]);
      };
      const int first = layout::fragment_place(16, 8, lane_, 0).row;
      const float upper = of_row(first), lower = of_row(first + 8);
      add_to_rows(acc, upper, lower);
      return;
    }
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {  // the lane's columns, two of them in each 8
      const int index = i / 2 * 4 + i % 2;    // in the upper row
      const int column = narrow + layout::fragment_place(16, 8, lane_, index).column;
      const int64_t at = min(column, params_.narrow_extent - 1);
      const float x = static_cast<float>(bias[at * params_.bias_narrow_stride]);
      acc[index] += x, acc[index + 2] += x;
    }
  }

  // A quad at a time, and its values one by one: one copy of the code of activate.
  __device__ void activate_all(float (&acc)[kColumns / 2]) const {
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      float x[4] = {acc[0], acc[1], acc[2], acc[3]};
      activate_in_turns<1>(params_.activation, x);
#pragma unroll
      for (int i = 0; i + 4 < kColumns / 2; ++i) acc[i] = acc[i + 4];
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[kColumns / 2 - 4 + i] = x[i];
    }
  }

  const Params& params_;
  float* inbox_;
  T* staging_;
  uint64_t *received_, *drained_;
  int rank_, warp_, lane_;
  uint32_t parity_ = 0;
  bool started_ = false;
};

}  // namespace xgemm::cuda::gemm::sm90::skinny
