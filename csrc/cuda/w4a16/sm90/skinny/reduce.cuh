// A warp that adds up the streaming warps' sums of each tile, then those of the cluster's CTAs, and
// stores the result: it does so while the others are at the next tiles.
#pragma once

#include <type_traits>

#include "cuda/ptx/group_arrive.h"
#include "cuda/ptx/ld_st.h"
#include "cuda/ptx/opaque.h"
#include "cuda/ptx/st_async.h"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/pipeline_state.cuh"
#include "cuda/w4a16/sm90/skinny/cta.cuh"
#include "cuda/w4a16/sm90/skinny/dequant.cuh"

namespace xgemm::cuda::w4a16::sm90::skinny {

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

  // Behind the last sums nothing hides an instruction, and a constant that was not read before
  // takes as long as ten: what can be known before sums are there is computed before they are
  // waited for.
  __device__ void run() {
    const Terms terms = find_terms();
    const Exchange exchange = find_exchange();
    DynamicPipelineState sums{p_.buffers};
#pragma unroll 1
    for (int wave = 0; wave < cta_.tiles; ++wave) {
      const int64_t column = int64_t{cta_.strip(p_, wave)} * w4::kStripColumns + final_column();
      const Place place = find_place(wave, column);
      const float4 bias = load_bias(column);
      if (p_.log2_cluster > 0) await_inbox(wave);
      float4 y = add_parts(terms, wave, sums.stage, sums.parity);
      sums.advance();
      if (p_.log2_cluster > 0) {
        send(y, exchange, wave & 1);
        y = receive(exchange, wave);
      }
      if (place.columns > 0) store(place, activated(y + bias));
    }
  }

 private:
  static constexpr int kColumns = kStrips * w4::kStripColumns;
  static constexpr int kLog2Pieces = kStrips == kWideStrips ? 4 : 3, kPiecesOfRow = kColumns / 4;
  static constexpr int kLog2MostRows = 5 - kLog2Pieces;  // of a warp, in lanes of their own
  static constexpr int kPitch = sum_pitch(kStrips);
  static_assert(1 << kLog2Pieces == kPiecesOfRow && kReducerRows * kPiecesOfRow <= kInboxPieces);
  static constexpr int kLog2ReducerRows = kReducerRows == 4 ? 2 : 1;
  static constexpr int kBoxBytes = kInboxPieces * 16;

  // What a lane adds up of a tile: so many terms, `step` bytes of shared memory apart, from `from`
  // on in the first buffer, and `buffer` bytes further in the next one.
  struct Terms {
    int from, step, count, buffer;
  };
  // Where a lane sends its sums, in shared memory of the cluster, and from where on it reads those
  // of the ranks, `pitch` bytes apart: in the first of the two boxes.
  struct Exchange {
    int to, to_full, from, pitch;
  };
  // Of D: so many of a lane's 4 columns exist.
  struct Place {
    uint16_t* to;
    int columns;
  };

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

  // Lanes that have the same piece of a row share its terms.
  __device__ int log2_sharers() const { return kLog2MostRows - log2_rows_; }
  __device__ Terms find_terms() const {
    const int pitch = p_.rows * (kPitch * 4), first = lane_ / kPiecesOfRow >> log2_rows_;
    const int row_of_sums = index_ * kReducerRows + min(row(), rows_ - 1);
    const int at = first * pitch + (row_of_sums * kPitch + column_of()) * 4;
    return {ptx::opaque(static_cast<int>(ptx::smem_address(sums_)) + at),
            ptx::opaque(pitch << log2_sharers()),
            ptx::opaque(ceil_div(p_.warps - first, 1 << log2_sharers())),
            ptx::opaque(p_.warps * pitch)};
  }

  __device__ Exchange find_exchange() const {
    const int own = log2_own_pieces(), piece = lane_ % kPiecesOfRow;
    const int rank = piece & ((1 << p_.log2_cluster) - 1), place = piece >> p_.log2_cluster;
    const int at = cta_.rank << (own + kLog2ReducerRows) | row() << own | place;
    const int inbox = static_cast<int>(ptx::smem_address(inbox_));
    const uint32_t full = ptx::smem_address(&barriers_.inbox_full[index_][0]);
    return {ptx::opaque(static_cast<int>(ptx::mapa(inbox + at * 16, rank))),
            ptx::opaque(static_cast<int>(ptx::mapa(full, rank))), ptx::opaque(inbox + lane_ * 16),
            ptx::opaque(16 << (own + kLog2ReducerRows))};
  }

  __device__ Place find_place(int wave, int64_t column) const {
    const int64_t end = int64_t{cta_.strip(p_, wave) + cta_.strips(p_, wave)} * w4::kStripColumns;
    const int64_t columns = final_row() < rows_ ? min(min(p_.n, end) - column, int64_t{4}) : 0;
    return {ptx::opaque(d_ + column * p_.d_col_stride), ptx::opaque(static_cast<int>(columns))};
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
  __device__ float4 add_parts(const Terms& of, int wave, int buffer, uint32_t parity) {
    uint2 scales{}, zeros{};
    const bool per_channel = kOneGroup && p_.groups == 0;
    if (per_channel) {
      const int strip = cta_.strip(p_, wave);
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
    float4 y{};
    ptx::mbarrier_wait(&barriers_.sums_full[buffer], parity);
    constexpr int kTogether = 8;
    int from = of.from + buffer * of.buffer;
#pragma unroll 1
    for (int left = of.count; left > 0; left -= kTogether, from += kTogether * of.step) {
      float4 terms[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        terms[i] = float4{};
        if (i < left) terms[i] = ptx::ld_shared(from + i * of.step);
      }
#pragma unroll
      for (int width = kTogether / 2; width > 0; width /= 2) {
#pragma unroll
        for (int i = 0; i < width; ++i) terms[i] = terms[i] + terms[i + width];
      }
      y = y + terms[0];
    }
    if (log2_sharers() > 1) y = y + shuffled(y, 8);
    if (log2_sharers() > 0) y = y + shuffled(y, 16);
    // In the terms of mma's products, in which columns 8 to 15 of a strip are larger.
    y = y * (1.0f / Codes<T>::kUnit / ((column_of() & 8) == 0 ? 1.0f : Codes<T>::kUpper));
    if (per_channel) {
      const int pitch = p_.rows * kPitch;
      const float* sum = sums_ + buffer * p_.warps * pitch + kColumns +
                         (index_ * kReducerRows + min(row(), rows_ - 1)) * kPitch;
      float x = 0.0f;
#pragma unroll 1
      for (int j = 0; j < p_.warps; ++j) x += sum[j * pitch];
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

  // All ranks have read what this wave's box held, and what is sent there next is expected.
  __device__ void await_inbox(int wave) {
    const int box = wave & 1;
    if (lane_ == 0) {
      ptx::mbarrier_arrive_expect_tx(&barriers_.inbox_full[index_][box],
                                     rows_ * kColumns * sizeof(float));
    }
    ptx::mbarrier_wait(&barriers_.inbox_empty[index_][box], (wave >> 1 & 1) ^ 1);
  }

  // Sends the CTA's sums to those that own their columns.
  __device__ void send(const float4& y, const Exchange& e, int box) {
    if (!has_sum()) return;
    ptx::st_async_v4(e.to + box * kBoxBytes, e.to_full + box * static_cast<int>(sizeof(uint64_t)),
                     y.x, y.y, y.z, y.w);
  }

  // The whole sum of this lane's own columns, the ranks added in their order.
  __device__ float4 receive(const Exchange& e, int wave) {
    const int box = wave & 1, ranks = 1 << p_.log2_cluster;
    int from = e.from + box * kBoxBytes;
    ptx::mbarrier_wait(&barriers_.inbox_full[index_][box], wave >> 1 & 1);
    float4 sum{};
    if (final_row() < rows_) {
#pragma unroll 1
      for (int rank = 0; rank < ranks; rank += 2, from += 2 * e.pitch) {
        const float4 even = ptx::ld_shared(from), odd = ptx::ld_shared(from + e.pitch);
        sum = sum + even + odd;
      }
    }
    __syncwarp();
    // Who sends nothing more may have left.
    if (wave + 2 < cta_.tiles) {
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

  __device__ void store(const Place& place, const float4& y) const {
    const uint2 words = {pack2<T>(y.x, y.y), pack2<T>(y.z, y.w)};
    if (p_.d_vectors && place.columns == 4) {
      *reinterpret_cast<uint2*>(place.to) = words;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = i < 2 ? words.x : words.y;
      if (i < place.columns) {
        place.to[i * p_.d_col_stride] = static_cast<uint16_t>(word >> (16 * (i % 2)));
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

}  // namespace xgemm::cuda::w4a16::sm90::skinny
