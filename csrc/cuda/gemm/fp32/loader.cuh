// From global memory to the tiles of shared memory.
#pragma once

#include "cuda/gemm/fp32/tile.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/opaque.h"

namespace xgemm::cuda::gemm::fp32 {

// What a CTA reads of an operand: rows from `row` on, below `rows`, and k in [k, k_end).
struct Range {
  int64_t row, rows, k, k_end;  // k_end - k < 2^31
};

// Copies tile after tile of [kRows, kBlockK] of an operand to shared memory, where it lies by k.
// Where k is what is contiguous in memory this transposes, 4 bytes a copy: that takes fewer
// instructions than any way through registers.
template <int kRows, int kThreads, int kStride, bool kChunksOnly>
class Loader {
 public:
  __device__ Loader(const OperandParams& operand, int64_t batch_offset, const Range& range,
                    int thread)
      : operand_(operand) {
    const bool along_k = !kChunksOnly && operand.access == Access::kAlongK;
    const bool chunks = kChunksOnly || operand.access == Access::kRows16;
    const int row_lanes = chunks ? kChunks : kRowLanes;
    row_ = along_k ? thread / kKLanes : thread % row_lanes * (chunks ? 4 : 1);
    k_ = along_k ? thread % kKLanes : thread / row_lanes;
    rows_left_ = static_cast<int>(min(range.rows - range.row, int64_t{kRows}));
    k_left_ = static_cast<int>(range.k_end - range.k);
    whole_rows_ = rows_left_ == kRows;
    source_ = reinterpret_cast<const char*>(operand.data + batch_offset +
                                            (range.row + row_) * operand.row_stride +
                                            (range.k + k_) * operand.k_stride);
    if (row_ >= rows_left_) source_ -= row_ * operand.row_stride * kBytes;
    step_ = kBytes * (along_k ? kThreads / kKLanes * operand.row_stride
                              : kThreads / row_lanes * operand.k_stride);
    tile_step_ = kBytes * kBlockK * operand.k_stride;
    offset_ = (k_ * kStride + row_) * kBytes;
  }

  // Starts the copy of the next tile to `tile` in shared memory.
  __device__ void fetch(uint32_t tile) {
    const uint32_t to = tile + offset_;
    const bool whole_k = k_left_ >= kBlockK;
    if (kChunksOnly || operand_.access == Access::kRows16) {
      whole_k&& whole_rows_ ? fetch_whole_chunks(to) : fetch_chunks(to);
    } else if (operand_.access == Access::kAlongK) {
      if (!whole_k || !operand_.unit_stride) {
        fetch_elements<kKLanes, kThreads / kKLanes>(to);
      } else {
        whole_rows_ ? fetch_along_k<true>(to) : fetch_along_k<false>(to);
      }
    } else if (!whole_k || !operand_.unit_stride) {
      fetch_elements<kThreads / kRowLanes, kRowLanes>(to);
    } else {
      whole_rows_ ? fetch_along_rows<true>(to) : fetch_along_rows<false>(to);
    }
    source_ += tile_step_;
    k_left_ -= kBlockK;
  }

 private:
  static constexpr int kBytes = sizeof(float);
  static constexpr int kChunks = kRows / 4;
  static constexpr int kRowLanes = kRows < 32 ? kRows : 32;  // neighbours along the rows
  static constexpr int kKLanes = 8;                          // neighbours along k: a sector
  static constexpr int kChunkStep = kThreads / kChunks;      // in k

  __device__ static constexpr int smem_offset(int k, int row) {
    return (k * kStride + row) * kBytes;
  }

  __device__ void fetch_whole_chunks(uint32_t to) {
    const char* from = source_;
#pragma unroll
    for (int k = 0; k < kBlockK; k += kChunkStep) {
      if (kChunkStep > kBlockK && k_ >= kBlockK) break;
      ptx::cp_async<16>(to + smem_offset(k, 0), from, 16);
      from = ptx::opaque(from + step_);
    }
  }

  // Of a unit stride. Rows past the operand's last one make rows or columns of D that nobody
  // stores, so another row is read for them.
  template <bool kWholeRows>
  __device__ void fetch_along_k(uint32_t to) {
    const char* from = source_;
#pragma unroll
    for (int row = 0; row < kRows; row += kThreads / kKLanes) {
      const char* at = kWholeRows || row_ + row < rows_left_ ? from : source_;
#pragma unroll
      for (int k = 0; k < kBlockK; k += kKLanes) {
        ptx::cp_async<4>(to + smem_offset(k, row), at + k * kBytes, kBytes);
      }
      from = ptx::opaque(from + step_);
    }
  }

  template <bool kWholeRows>
  __device__ void fetch_along_rows(uint32_t to) {
    const char* from = source_;
#pragma unroll
    for (int k = 0; k < kBlockK; k += kThreads / kRowLanes) {
#pragma unroll
      for (int row = 0; row < kRows; row += kRowLanes) {
        const bool inside = kWholeRows || row_ + row < rows_left_;
        ptx::cp_async<4>(to + smem_offset(k, row), from + (inside ? row * kBytes : 0), kBytes);
      }
      from = ptx::opaque(from + step_);
    }
  }

  __device__ void fetch_chunks(uint32_t to) {
    const int bytes = min(max(rows_left_ - row_, 0), 4) * kBytes;
    const char* from = source_;
#pragma unroll 1
    for (int k = 0; k < kBlockK; k += kChunkStep) {
      if (kChunkStep > kBlockK && k_ >= kBlockK) break;
      ptx::cp_async<16>(to + smem_offset(k, 0), from, k_ + k < k_left_ ? bytes : 0);
      from += step_;
    }
  }

  // Any strides, and zeros outside. kStepK, kStepRow: how far apart the thread's elements are.
  template <int kStepK, int kStepRow>
  __device__ void fetch_elements(uint32_t to) {
    const char* from_row = source_;
#pragma unroll 1
    for (int row = 0; row < kRows; row += kStepRow) {
      const char* from = from_row;
#pragma unroll 1
      for (int k = 0; k < kBlockK; k += kStepK) {
        const bool inside = row_ + row < rows_left_ && k_ + k < k_left_;
        ptx::cp_async<4>(to + smem_offset(k, row), from, inside ? kBytes : 0);
        from += kBytes * kStepK * operand_.k_stride;
      }
      from_row += kBytes * kStepRow * operand_.row_stride;
    }
  }

  const OperandParams& operand_;
  const char* source_;
  int64_t step_, tile_step_;  // bytes: from a copy to the next, from a tile to the next
  uint32_t offset_;
  int row_, k_, rows_left_, k_left_;
  bool whole_rows_;
};

}  // namespace xgemm::cuda::gemm::fp32
