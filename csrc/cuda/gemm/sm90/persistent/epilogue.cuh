// From a warpgroup's accumulators to D.
#pragma once

#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/persistent/params.h"
#include "cuda/gemm/sm90/store_line.cuh"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/stmatrix.h"
#include "cuda/ptx/stmatrix_trans.h"
#include "cuda/ptx/tma.h"
#include "cuda/tile/accumulators.cuh"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::gemm::sm90::persistent {

// A box is [64, kColumns] of D, or of a D that is column-major the transpose of that.
//
// Two steps, so that the slow one runs under the next tile's wgmmas: take() packs the finished
// values into half the registers; store() writes one box of columns, through shared memory and by
// TMA, or element by element where D does not suit TMA.
template <typename T, int kBlockN>
class Epilogue {
 public:
  static constexpr int kColumns = store_columns(kBlockN);     // of a box
  static constexpr int kBoxes = ceil_div(kBlockN, kColumns);  // the last two may overlap
  using Staging = T[2][64 * kColumns];                        // two boxes, in turns

  __device__ Epilogue(const Params& params, Staging& staging, int consumer, int thread)
      : params_(params), staging_(staging), barrier_(1 + consumer), thread_(thread) {}

  // Bias and activation. acc: [64, kBlockN] in wgmma's layout, of the tile whose corner in D is
  // (m, n).
  __device__ void finish(float (&acc)[kBlockN / 2], int m, int n) const {
    if (params_.bias != nullptr) add_bias(acc, m, n);
    if (params_.activation != Activation::kNone)
      activate_in_turns<kBlockN / 2 % 16 == 0 ? 16 : 8>(params_.activation, acc);
  }

  __device__ void take(const float (&acc)[kBlockN / 2], int m, int n, BatchPosition batch) {
    m_ = m, n_ = n, batch_ = batch;
#pragma unroll
    for (int i = 0; i < kBlockN / 4; ++i) packed_[i] = pack2<T>(acc[2 * i], acc[2 * i + 1]);
    pending_ = true;
  }

  __device__ bool pending() const { return pending_; }
  __device__ void stored() { pending_ = false; }  // all of its boxes

  // One of kBoxes, while a tile follows.
  template <int kBox>
  __device__ void store() {
    if (thread_ == 0) ptx::bulk_wait_group_read<1>();
    ptx::named_barrier_sync(barrier_, kWarpgroup);  // the buffer's last store has read it
    T* staging = staging_[turn_];
    turn_ ^= 1;  // not kBox % 2: a tile may have an odd number of boxes
    if (params_.transposed) {
      stage<true, kBox>(staging);
    } else {
      stage<false, kBox>(staging);
    }
    publish();
    write(staging, kBox);
  }

  // What is left when no tile follows, boxes `first` to `end` of it, through `staging`, which holds
  // [64, kBlockN] and is free; kStride elements apart for every 64 columns. Code that runs once is
  // to be short: its instructions come from memory. One fence for all boxes, because behind a store
  // it would wait for that store; and every warp issues some of the stores, which take 250 cycles
  // each.
  template <int kStride>
  __device__ void store_all(T* staging, int first, int end) {
    if (!pending_) return;
    ptx::named_barrier_sync(barrier_, kWarpgroup);  // all warps have read what lay there
    if (params_.transposed) {
      stage_boxes<true, kStride, 0>(staging, first, end);
    } else {
      stage_boxes<false, kStride, 0>(staging, first, end);
    }
    publish();
    if (params_.tma_store) [[likely]] {
#pragma unroll 1
      for (int box = first; box < end; ++box) {
        if (thread_ == box % 4 * 32) write_by_tma(staging + offset<kStride>(box), box);
      }
    } else {
#pragma unroll 1
      for (int box = first; box < end; ++box) {
        store_elements(staging + offset<kStride>(box), n_ + first_column(box));
      }
    }
    if (thread_ % 32 == 0) ptx::bulk_wait_group_read<0>();  // shared memory must outlive the stores
    pending_ = false;
  }

 private:
  static __device__ constexpr int first_column(int box) {
    return box < kBoxes - 1 ? box * kColumns : kBlockN - kColumns;
  }
  template <int kStride>
  static __device__ constexpr int offset(int box) {
    return box * kColumns / 64 * kStride + box * kColumns % 64 * 64;
  }

  template <bool kTransposed, int kStride, int kBox>
  __device__ void stage_boxes(T* staging, int first, int end) {
    if constexpr (kBox < kBoxes) {
      if (kBox >= first && kBox < end) {
        stage<kTransposed, kBox>(staging + offset<kStride>(kBox));
      }
      stage_boxes<kTransposed, kStride, kBox + 1>(staging, first, end);
    }
  }

  template <bool kTransposed, int kBox>
  __device__ void stage(T* staging) {
    const int warp = thread_ / 32, lane = thread_ % 32, matrix = lane / 8;
    const uint32_t* packed = packed_ + first_column(kBox) / 4;
    if constexpr (kTransposed) {
      const int row = lane % 8, chunk = warp * 2 + matrix % 2;
      T* to = staging + row * 64 + (chunk ^ layout::swizzle_xor(row, 3)) * 8;
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        const uint32_t* d = packed + 2 * j;
        ptx::stmatrix_x4_trans(to + (j + matrix / 2) * 8 * 64, d[0], d[1], d[2], d[3]);
      }
    } else {
      const int row = warp * 16 + matrix % 2 * 8 + lane % 8;
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        const uint32_t* d = packed + 2 * j;
        ptx::stmatrix_x4(staging + position(row, j + matrix / 2), d[0], d[1], d[2], d[3]);
      }
    }
  }

  // What was staged, to the warpgroup and to TMA.
  __device__ void publish() {
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(barrier_, kWarpgroup);
  }

  __device__ void write(const T* staging, int box) {
    if (!params_.tma_store) [[unlikely]] {
      store_elements(staging, n_ + first_column(box));
    } else if (thread_ == 0) {
      write_by_tma(staging, box);
    }
  }

  __device__ void write_by_tma(const T* staging, int box) {
    const int column = n_ + first_column(box);
    if (m_ < params_.m && column < params_.n) {
      const bool transposed = params_.transposed;
      ptx::tma_store_4d(&params_.d, staging, transposed ? m_ : column, transposed ? column : m_,
                        batch_.inner, batch_.outer);
    }
    ptx::bulk_commit_group();
  }

  // Where a row's 16-byte chunk lies in a box: TMA's 128-byte (or 64-byte) swizzle, which also
  // spares stmatrix bank conflicts.
  static __device__ int position(int row, int chunk) {
    const int swizzle = layout::swizzle_xor(row, kColumns == 64 ? 3 : 2);
    return row * kColumns + (chunk ^ swizzle) * 8;
  }

  // Along D's columns or, where a and b have changed places, its rows, of which a thread has two.
  __device__ void add_bias(float (&acc)[kBlockN / 2], int m, int n) const {
    const T* bias = static_cast<const T*>(params_.bias);
    if (params_.bias_col_stride == 0) {
      const int row = m + thread_ / 32 * 16 + thread_ % 32 / 4;
      float of_row[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        of_row[i] =
            static_cast<float>(bias[min(row + 8 * i, params_.m - 1) * params_.bias_row_stride]);
      }
      add_to_rows(acc, of_row[0], of_row[1]);
      return;
    }
    // The lanes load different columns, and hand each other what they need: a load of its own for
    // each value would take more registers than there are.
    const int lane = thread_ % 32;
#pragma unroll
    for (int first = 0; first < kBlockN; first += 32) {
      const int column = min(n + first + lane, params_.n - 1);
      const float of_lane = static_cast<float>(bias[column * params_.bias_col_stride]);
#pragma unroll
      for (int i = 0; i < 8 && first + 4 * i < kBlockN; ++i) {
        const int index = i / 2 * 4 + i % 2;  // of the upper row's sums
        const float of_column =
            __shfl_sync(~0u, of_lane, layout::fragment_place(16, 8, lane, index).column);
        float* x = acc + first / 2 + index;
        x[0] += of_column, x[2] += of_column;
      }
    }
  }

  // Neighbouring threads write neighbours along the dimension of D that is contiguous, and go along
  // the other one. The swizzle is the same in all eights of rows: most of an address is found once.
  __device__ void store_elements(const T* staging, int column) const {
    constexpr int kSide = 64, kColumnStep = kWarpgroup / kSide, kRowStep = kWarpgroup / kColumns;
    const bool by_column = params_.d_row_stride == 1;
    const int r = by_column ? thread_ % kSide : thread_ / kColumns;
    const int c = by_column ? thread_ / kSide : thread_ % kColumns;
    const int rows = params_.m - m_ - r, columns = params_.n - column - c;
    if (rows <= 0 || columns <= 0) return;
    T* d = static_cast<T*>(params_.d_data) + batch_.inner * params_.d_batch_stride[0] +
           batch_.outer * params_.d_batch_stride[1] + (m_ + r) * params_.d_row_stride +
           (column + c) * params_.d_col_stride;
    if (by_column) {
      store_line<kColumns, kColumnStep>(d, params_.d_col_stride, columns, [&](int eight, int i) {
        return staging[position(r, eight) + c + i];
      });
    } else {
      store_line<kSide, kRowStep>(d, params_.d_row_stride, rows, [&](int eight, int i) {
        return staging[eight * 8 * kColumns + position(r + i, c / 8) + c % 8];
      });
    }
  }

  const Params& params_;
  Staging& staging_;
  int barrier_, thread_;
  int m_ = 0, n_ = 0;
  BatchPosition batch_{};
  int turn_ = 0;  // the buffer that is written next
  uint32_t packed_[kBlockN / 4];
  bool pending_ = false;
};

}  // namespace xgemm::cuda::gemm::sm90::persistent
