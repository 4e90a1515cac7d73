// From global memory to the swizzled tiles of shared memory.
#pragma once

#include <type_traits>

#include "common/math.h"
#include "cuda/gemm/sm80/params.h"
#include "cuda/gemm/sm80/tile.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/ld_st.h"

namespace xgemm::cuda::gemm::sm80 {

// What a CTA reads of an operand, tile by tile: rows from `row` on, and k in [k, k_end). The
// operand's extents are `rows` and `k_extent`.
struct Range {
  int64_t row, rows, k, k_end, k_extent;  // k_end - k < 2^31
};

// A thread's chunks of an operand's tile: as many lines apart in each pass over a panel, and at the
// same place of all panels.
template <typename Layout, int kThreads>
class Chunks {
 public:
  static constexpr int kLinesPerPass = kThreads / Layout::kChunks;
  static constexpr int kPasses = Layout::kLines / kLinesPerPass;
  static constexpr int kPerThread = kPasses * Layout::kPanels;
  static_assert(kPasses * kLinesPerPass == Layout::kLines, "whole chunks");
  static_assert(kLinesPerPass % 8 == 0, "all chunks of a thread have the same swizzle");

  // Whatever is copied from here on is zeros.
  __device__ void stop() { k_left_ = 0; }

 protected:
  __device__ void start(const Range& range, int line, int chunk) {
    const int inner = chunk * kChunkElements;
    smem_offset_ = Layout::offset(line, chunk);
    rows_left_ = static_cast<int>(min(range.rows - range.row, int64_t{Layout::kRows})) -
                 (Layout::kMnMajor ? inner : line);
    k_left_ = static_cast<int>(range.k_end - range.k) - (Layout::kMnMajor ? line : inner) +
              Layout::kBlockK;
  }

  // Where chunk i lies beside chunk 0.
  __device__ static constexpr int row_offset(int i) {
    return Layout::kMnMajor ? i % Layout::kPanels * Layout::kPanelRows : i * kLinesPerPass;
  }
  __device__ static constexpr int k_offset(int i) {
    return Layout::kMnMajor ? i / Layout::kPanels * kLinesPerPass : 0;
  }
  __device__ uint32_t smem_offset(int i) const {
    return smem_offset_ + i / Layout::kPanels * kLinesPerPass * Layout::kLineBytes +
           i % Layout::kPanels * Layout::kPanelBytes;
  }
  // To the next tile; the first time to the first one.
  __device__ void advance() { k_left_ -= Layout::kBlockK; }

  int rows_left_, k_left_;  // from chunk 0 on
  uint32_t smem_offset_;
};

// Operands of Access::kWhole16. All threads take the same steps from chunk to chunk and from tile
// to tile: those are in uniform registers, and a thread has nothing but its first chunk's offset.
template <typename Layout, int kThreads>
class AlignedLoader : public Chunks<Layout, kThreads> {
  using Base = Chunks<Layout, kThreads>;

 public:
  // `batch_offset`: of the batch's element (0, 0), in elements.
  __device__ void start(const OperandParams& operand, int64_t batch_offset, const Range& range,
                        int thread) {
    const int line = thread / Layout::kChunks, chunk = thread % Layout::kChunks;
    Base::start(range, line, chunk);
    const int64_t row_bytes = Layout::kMnMajor ? 2 : operand.row_stride * 2;
    const int64_t k_bytes = Layout::kMnMajor ? operand.k_stride * 2 : 2;
    const int64_t line_bytes = Layout::kMnMajor ? k_bytes : row_bytes;
    offset_ = line * static_cast<uint32_t>(line_bytes) + chunk * 16;  // kMaxLineStride
    pass_step_ = Base::kLinesPerPass * line_bytes;
    k_step_ = Layout::kBlockK * k_bytes;
    tile_ = static_cast<const char*>(operand.data) + batch_offset * 2 + range.row * row_bytes +
            range.k * k_bytes - k_step_;
  }

  __device__ void next_tile() {
    tile_ += k_step_;
    this->advance();
  }

  // Starts the copy of chunk i of the tile to `tile` in shared memory.
  __device__ void copy(uint32_t tile, int i) const {
    const char* pass = tile_ + i / Layout::kPanels * pass_step_;
    ptx::cp_async_16_or_zero(
        tile + this->smem_offset(i), pass + i % Layout::kPanels * Layout::kLineBytes + offset_,
        this->rows_left_ > this->row_offset(i) && this->k_left_ > this->k_offset(i));
  }

 private:
  const char* tile_;
  int64_t pass_step_, k_step_;  // bytes
  uint32_t offset_;
};

// Every other operand, by what Access says. Without 4-byte alignment there is no cp.async: fetch
// then loads into registers, and flush writes them to shared memory a tile later.
//
// Only k needs zeros past its end: rows past the operand's last one make rows or columns of D that
// nobody stores. So they are read as the last ones, and most tiles need no check for each chunk.
template <typename Layout, int kThreads>
class GeneralLoader : public Chunks<Layout, kThreads> {
  using Base = Chunks<Layout, kThreads>;

 public:
  using Base::kPerThread;
  static_assert(kPerThread <= 2, "more chunks in registers would spill");

  // `batch_offset`: of the batch's element (0, 0), in elements.
  __device__ void start(const OperandParams& operand, int64_t batch_offset, const Range& range,
                        int thread) {
    const int line = thread / Layout::kChunks, chunk = thread % Layout::kChunks;
    Base::start(range, line, chunk);
    const int inner = chunk * kChunkElements;
    const int row = Layout::kMnMajor ? inner : line, k = Layout::kMnMajor ? line : inner;
    access_ = operand.access;
    inner_stride_ = Layout::kMnMajor ? operand.row_stride : operand.k_stride;
    k_step_ = Layout::kBlockK * operand.k_stride * 2;
    const char* first =
        static_cast<const char*>(operand.data) +
        (batch_offset + (range.row + row) * operand.row_stride + (range.k + k) * operand.k_stride) *
            2;
    whole_rows_ = true;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      source_[i] =
          first +
          (this->row_offset(i) * operand.row_stride + this->k_offset(i) * operand.k_stride) * 2 -
          k_step_;
      int rows = this->rows_left_ - this->row_offset(i);
      if (rows <= 0) {
        const int back = Layout::kMnMajor ? round_up(1 - rows, kChunkElements) : 1 - rows;
        source_[i] -= back * operand.row_stride * 2;
        rows += back;
      }
      chunk_rows_[i] = min(rows, kChunkElements);
      whole_rows_ = whole_rows_ && (!Layout::kMnMajor || rows >= kChunkElements);
    }
    const int64_t last_row = (range.rows - 1) * operand.row_stride;
    const int64_t last_k = (range.k_extent - 1) * operand.k_stride;
    const auto* data = static_cast<const uint16_t*>(operand.data) + batch_offset;
    begin_ =
        reinterpret_cast<uintptr_t>(data + min(last_row, int64_t{0}) + min(last_k, int64_t{0}));
    end_ =
        reinterpret_cast<uintptr_t>(data + max(last_row, int64_t{0}) + max(last_k, int64_t{0}) + 1);
  }

  // Pointers move on before a tile's copies, not behind them: those are slow to read the registers
  // that hold their addresses.
  __device__ void fetch(uint32_t tile) {
    this->advance();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) source_[i] += k_step_;
    switch (access_) {
      case Access::kWhole16:
      case Access::kCopy16:
        copy<16>(tile);
        break;
      case Access::kCopy8:
        copy<8>(tile);
        break;
      case Access::kCopy4:
        copy<4>(tile);
        break;
      case Access::kShift:
        load_pieces();
        break;
      case Access::kStrided:
        load_elements();
        break;
    }
  }

  // Writes what the last fetch left in registers to its tile.
  __device__ void flush(uint32_t tile) {
    if (access_ != Access::kShift && access_ != Access::kStrided) return;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) ptx::st_shared(tile + this->smem_offset(i), shifted(i));
  }

 private:
  // Whether all of this thread's chunks have all of their k.
  __device__ bool whole_in_k() const {
    return this->k_left_ >=
           (Layout::kMnMajor ? this->k_offset(kPerThread - 1) + 1 : kChunkElements);
  }

  // How many of the 8 elements of chunk i exist; the rest reads as zero.
  __device__ int valid(int i) const {
    if constexpr (Layout::kMnMajor) {
      return this->k_offset(i) < this->k_left_ ? chunk_rows_[i] : 0;
    } else {
      return max(min(this->k_left_, kChunkElements), 0);
    }
  }

  template <int kBytes>
  __device__ void copy(uint32_t tile) {
    const bool whole = whole_rows_ && whole_in_k();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int bytes = whole ? 16 : valid(i) * 2;
#pragma unroll
      for (int at = 0; at < 16; at += kBytes) {
        ptx::cp_async<kBytes>(tile + this->smem_offset(i) + at, source_[i] + at,
                              max(min(bytes - at, kBytes), 0));
      }
    }
  }

  // The two aligned pieces of 16 bytes that a chunk lies in. What they hold beside the chunk is
  // read too, so all must lie within the operand; else the chunk is read by its elements.
  __device__ void load_pieces() {
    const uintptr_t first = aligned(source_[0]);
    const uintptr_t last = aligned(source_[kPerThread - 1]);
    if (!whole_in_k() || min(first, last) < begin_ || max(first, last) + 32 > end_) {
      load_elements();
      return;
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const auto* piece = reinterpret_cast<const uint4*>(aligned(source_[i]));
      pieces_[i][0] = __ldg(piece);
      pieces_[i][1] = __ldg(piece + 1);
      shift_[i] = static_cast<int>(reinterpret_cast<uintptr_t>(source_[i]) % 16);
    }
  }

  __device__ static uintptr_t aligned(const char* address) {
    return reinterpret_cast<uintptr_t>(address) & ~uintptr_t{15};
  }

  __device__ void load_elements() {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const auto* source = reinterpret_cast<const uint16_t*>(source_[i]);
      const int count = valid(i);
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t low = 2 * w < count ? __ldg(source + 2 * w * inner_stride_) : 0;
        const uint32_t high = 2 * w + 1 < count ? __ldg(source + (2 * w + 1) * inner_stride_) : 0;
        words[w] = low | high << 16;
      }
      pieces_[i][0] = {words[0], words[1], words[2], words[3]};
      shift_[i] = 0;
    }
  }

  __device__ uint4 shifted(int i) const {
    const uint4 low = pieces_[i][0], high = pieces_[i][1];
    const bool by8 = shift_[i] & 8, by4 = shift_[i] & 4;
    const uint32_t a0 = by8 ? low.z : low.x, a1 = by8 ? low.w : low.y;
    const uint32_t a2 = by8 ? high.x : low.z, a3 = by8 ? high.y : low.w;
    const uint32_t a4 = by8 ? high.z : high.x, a5 = by8 ? high.w : high.y;
    const uint32_t b0 = by4 ? a1 : a0, b1 = by4 ? a2 : a1, b2 = by4 ? a3 : a2;
    const uint32_t b3 = by4 ? a4 : a3, b4 = by4 ? a5 : a4;
    const int bits = (shift_[i] & 2) * 8;
    return {__funnelshift_r(b0, b1, bits), __funnelshift_r(b1, b2, bits),
            __funnelshift_r(b2, b3, bits), __funnelshift_r(b3, b4, bits)};
  }

  Access access_;
  const char* source_[kPerThread];
  int64_t k_step_;         // bytes
  int64_t inner_stride_;   // elements
  uintptr_t begin_, end_;  // of the operand's elements in this batch
  uint4 pieces_[kPerThread][2] = {};
  int shift_[kPerThread] = {};  // bytes before the chunk in its first piece
  int chunk_rows_[kPerThread];  // that exist, where a chunk lies along the rows
  bool whole_rows_;             // all of them
};

template <typename Layout, int kThreads, bool kGeneral>
using Loader =
    std::conditional_t<kGeneral, GeneralLoader<Layout, kThreads>, AlignedLoader<Layout, kThreads>>;

}  // namespace xgemm::cuda::gemm::sm80
