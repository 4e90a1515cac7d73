// A warp that adds up the streaming warps' sums of each tile, then those of the cluster's CTAs, and
// stores the result: it does so while the others are at the next tiles.
#pragma once

#include <type_traits>

#include "cuda/ptx/group_arrive.h"
#include "cuda/ptx/st_async.h"
#include "cuda/tile/convert.cuh"
#include "cuda/w4a16/sm90/rows/cta.cuh"
#include "cuda/w4a16/sm90/rows/dequant.cuh"

namespace xgemm::cuda::w4a16::sm90::rows {

template <typename T>
__device__ inline float to_float(uint16_t bits) {
  return scale_to_float(bits, std::is_same_v<T, __nv_bfloat16>);
}
__device__ inline float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
__device__ inline float4 operator*(const float4& a, float b) {
  return {a.x * b, a.y * b, a.z * b, a.w * b};
}

// The reducer of rows kReducerRows * index ... A lane has 4 adjacent columns of a row; where that
// leaves lanes over, they share what is to be added up. kOneGroup: there may be one group for all
// of K.
template <typename T, int kReducerRows, int kStrips, bool kOneGroup>
class Reducer {
 public:
  __device__ Reducer(const Params& p, const Cta& cta, uint8_t* smem, int index, int lane)
      : p_(p),
        cta_(cta),
        barriers_(*reinterpret_cast<Barriers*>(smem)),
        sums_(reinterpret_cast<const float*>(smem + p.shared.sums)),
        inbox_(reinterpret_cast<float4*>(smem + p.shared.inbox) + index * 2 * kInboxPieces),
        index_(index),
        lane_(lane),
        rows_(min(p.rows - index * kReducerRows, kReducerRows)),
        log2_rows_(rows_ > 2 ? 2 : rows_ - 1),
        d_(p.d + (index * kReducerRows + final_row()) * p.d_row_stride) {}

  __device__ void run() {
    const int row = final_row(), column = final_column();
#pragma unroll 1
    for (int turn = 0, buffer = 0, parity = 0; turn < cta_.tiles; ++turn) {
      // All that can be known before the sums are there.
      const int64_t first = int64_t{cta_.strip(p_, turn)} * w4::kStripColumns;
      const int64_t end = min(p_.n, first + cta_.strips(p_, turn) * w4::kStripColumns);
      const float4 bias = load_bias(first + column);
      float4 y = add_parts(turn, buffer, parity);
      if (++buffer == p_.buffers) buffer = 0, parity ^= 1;
      if (p_.log2_cluster > 0) {
        send(y, turn);
        y = receive(turn);
      }
      if (row < rows_) store(first + column, end, activated(y + bias));
    }
  }

 private:
  static constexpr int kColumns = kStrips * w4::kStripColumns;
  static constexpr int kLog2Pieces = kStrips == kWideStrips ? 4 : 3, kPiecesOfRow = kColumns / 4;
  static constexpr int kLog2MostRows = 5 - kLog2Pieces;  // of a warp, in lanes of their own
  static constexpr int kPitch = sum_pitch(kStrips);
  static_assert(1 << kLog2Pieces == kPiecesOfRow && kReducerRows * kPiecesOfRow <= kInboxPieces);
  static constexpr int kLog2ReducerRows = kReducerRows == 4 ? 2 : 1;

  // Before the exchange; the first lanes have all rows, and what others add they add to theirs.
  __device__ int row() const { return lane_ / kPiecesOfRow & ((1 << log2_rows_) - 1); }
  __device__ bool has_sum() const { return lane_ / kPiecesOfRow < rows_; }
  __device__ int column_of() const { return lane_ % kPiecesOfRow * 4; }
  // After it a CTA has every cluster-th 4 columns.
  __device__ int log2_own_pieces() const { return kLog2Pieces - p_.log2_cluster; }
  __device__ int final_row() const { return lane_ >> log2_own_pieces(); }
  __device__ int final_column() const {
    const int own = lane_ & ((1 << log2_own_pieces()) - 1);
    return ((own << p_.log2_cluster) + cta_.rank) * 4;
  }

  __device__ float4 load_bias(int64_t column) const {
    float bias[4] = {};
    if (p_.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < p_.n) bias[i] = to_float<T>(p_.bias[(column + i) * p_.bias_stride]);
      }
    }
    return {bias[0], bias[1], bias[2], bias[3]};
  }

  __device__ static float4 shuffled(const float4& y, int by) {
    return {__shfl_xor_sync(~0u, y.x, by), __shfl_xor_sync(~0u, y.y, by),
            __shfl_xor_sync(~0u, y.z, by), __shfl_xor_sync(~0u, y.w, by)};
  }

  // The sum over the CTA's K, in an order that depends on the numbers of warps and of rows.
  __device__ float4 add_parts(int turn, int buffer, uint32_t parity) {
    uint2 scales{}, zeros{};
    const bool per_channel = kOneGroup && p_.groups == 0;
    if (per_channel) {
      const int strip = cta_.strip(p_, turn);
      // Of a single strip's neighbours the columns are not stored: the row's last ones do.
      const int column = min(strip % 4 * w4::kStripColumns + column_of(), w4::kRowColumns - 4);
      const uint8_t* tail = p_.weight + (strip / 4 + 1) * p_.row_bytes -
                            w4::kRowColumns * w4::kScaleBytes * (p_.zeros ? 2 : 1);
      const uint8_t* from = tail + column * w4::kScaleBytes;
      scales = *reinterpret_cast<const uint2*>(from);
      if (p_.zeros) {
        zeros = *reinterpret_cast<const uint2*>(from + w4::kRowColumns * w4::kScaleBytes);
      }
    }
    const int parts = p_.warps, pitch = p_.rows * kPitch;
    const float* from = sums_ + buffer * parts * pitch +
                        (index_ * kReducerRows + min(row(), rows_ - 1)) * kPitch + column_of();
    float4 y{};
    ptx::mbarrier_wait(&barriers_.sums_full[buffer], parity);
    const int log2_step = kLog2MostRows - log2_rows_;
    constexpr int kTogether = 8;
#pragma unroll 1
    for (int part = lane_ / kPiecesOfRow >> log2_rows_; part < parts;
         part += kTogether << log2_step) {
      float4 terms[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int j = part + (i << log2_step);
        terms[i] = float4{};
        if (j < parts) terms[i] = *reinterpret_cast<const float4*>(from + j * pitch);
      }
#pragma unroll
      for (int width = kTogether / 2; width > 0; width /= 2) {
#pragma unroll
        for (int i = 0; i < width; ++i) terms[i] = terms[i] + terms[i + width];
      }
      y = y + terms[0];
    }
    if (log2_step > 1) y = y + shuffled(y, 8);
    if (log2_step > 0) y = y + shuffled(y, 16);
    // In the terms of mma's products, in which columns 8 to 15 of a strip are larger.
    y = y * (1.0f / Codes<T>::kUnit / ((column_of() & 8) == 0 ? 1.0f : Codes<T>::kUpper));
    if (per_channel) {
      float x = 0.0f;
#pragma unroll 1
      for (int j = 0; j < parts; ++j) x += from[j * pitch + kColumns - column_of()];
      x *= 1.0f / Codes<T>::kUnit;
      y.x = scaled(y.x, x, scales.x & 0xffff, zeros.x & 0xffff);
      y.y = scaled(y.y, x, scales.x >> 16, zeros.x >> 16);
      y.z = scaled(y.z, x, scales.y & 0xffff, zeros.y & 0xffff);
      y.w = scaled(y.w, x, scales.y >> 16, zeros.y >> 16);
    }
    __syncwarp();
    if (ptx::kAllArrive || lane_ == 0) ptx::mbarrier_arrive(&barriers_.sums_empty[buffer]);
    return y;
  }

  // With one group for all of K: what the products lack, which are those of code - 8.
  __device__ float scaled(float y, float sum_of_x, uint32_t scale, uint32_t zero) const {
    if (p_.zeros) y = fmaf(w4::kSymmetricZero - scale_to_float(zero, false), sum_of_x, y);
    return y * scale_to_float(scale, p_.bf16_scales);
  }

  // Sends the CTA's sums to those that own their columns.
  __device__ void send(const float4& y, int turn) {
    const int box = turn & 1, own = log2_own_pieces();
    uint64_t* full = &barriers_.inbox_full[index_][box];
    if (lane_ == 0) ptx::mbarrier_arrive_expect_tx(full, rows_ * kColumns * sizeof(float));
    // All ranks have read what this box held.
    ptx::mbarrier_wait(&barriers_.inbox_empty[index_][box], (turn >> 1 & 1) ^ 1);
    if (!has_sum()) return;
    const int piece = lane_ % kPiecesOfRow;
    const int to = piece & ((1 << p_.log2_cluster) - 1), place = piece >> p_.log2_cluster;
    const uint32_t inbox = ptx::mapa(ptx::smem_address(inbox_ + box * kInboxPieces), to);
    const uint32_t remote_full = ptx::mapa(ptx::smem_address(full), to);
    const int at = cta_.rank << (own + kLog2ReducerRows) | row() << own | place;
    ptx::st_async_v4(inbox + at * 16, remote_full, y.x, y.y, y.z, y.w);
  }

  // The whole sum of this lane's own columns, the ranks added in their order.
  __device__ float4 receive(int turn) {
    const int box = turn & 1, ranks = 1 << p_.log2_cluster;
    const int log2_pitch = log2_own_pieces() + kLog2ReducerRows;
    const float4* inbox = inbox_ + box * kInboxPieces + lane_;
    ptx::mbarrier_wait(&barriers_.inbox_full[index_][box], turn >> 1 & 1);
    float4 sum{};
    if (final_row() < rows_) {
#pragma unroll 1
      for (int rank = 0; rank < ranks; rank += 2) {
        const float4 even = inbox[rank << log2_pitch], odd = inbox[(rank + 1) << log2_pitch];
        sum = sum + even + odd;
      }
    }
    __syncwarp();
    // Who sends nothing more may have left.
    if (turn + 2 < cta_.tiles) {
      ptx::mbarrier_arrive_group_cluster(&barriers_.inbox_empty[index_][box], lane_, ranks);
    }
    return sum;
  }

  __device__ float4 activated(float4 y) const {
    if (p_.activation == Activation::kNone) return y;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) y = {y.y, y.z, y.w, activate(p_.activation, y.x)};
    return y;
  }

  __device__ void store(int64_t column, int64_t end, const float4& y) const {
    const uint2 words = {pack2<T>(y.x, y.y), pack2<T>(y.z, y.w)};
    uint16_t* to = d_ + column * p_.d_col_stride;
    if (p_.d_vectors && column + 3 < end) {
      *reinterpret_cast<uint2*>(to) = words;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = i < 2 ? words.x : words.y;
      if (column + i < end) {
        to[i * p_.d_col_stride] = static_cast<uint16_t>(word >> (16 * (i % 2)));
      }
    }
  }

  const Params& p_;
  const Cta& cta_;
  Barriers& barriers_;
  const float* sums_;
  float4* inbox_;
  int index_, lane_;
  int rows_, log2_rows_;  // that exist; rounded up
  uint16_t* d_;           // the lane's row
};

}  // namespace xgemm::cuda::w4a16::sm90::rows
