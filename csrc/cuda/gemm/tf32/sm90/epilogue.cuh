// From accumulators to D, or to split-K's partial sums.
#pragma once

#include "cuda/gemm/tf32/sm90/operands.cuh"
#include "cuda/ptx/opaque.h"

namespace xgemm::cuda::gemm::tf32::sm90 {

struct WorkTile {
  int x, y, batch, split;  // first row of X, first row of Y
};

// What D gets of the sums of two neighbouring rows of Y. Not inlined: a thread has tens of them.
__device__ __noinline__ inline float2 finish_pair(const Params& params, int batch, float2 sums,
                                                  int64_t x, int64_t y) {
  float values[2] = {sums.x, sums.y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // alpha 0 means that A B does not count, not even where it is NaN (BLAS).
    float value = params.alpha == 0.0f ? 0.0f : params.alpha * values[i];
    if (x < params.x_rows && y + i < params.y_rows) {
      if (params.beta != 0.0f) {
        value += params.beta * params.c[x * params.c_x_stride + (y + i) * params.c_y_stride +
                                        batch * params.c_batch_stride];
      }
      if (params.bias != nullptr) {
        value += params.bias[x * params.bias_x_stride + (y + i) * params.bias_y_stride];
      }
    }
    values[i] = activate(params.activation, value);
  }
  return {values[0], values[1]};
}

template <int kLanes>
__device__ inline float2 exchange(float2 mine) {
  return {__shfl_xor_sync(~0u, mine.x, kLanes), __shfl_xor_sync(~0u, mine.y, kLanes)};
}

// Straight from registers, in whole sectors whichever way D lies. A thread has two neighbouring
// columns (rows of Y) of every eight, in two rows of X.
//
// With one product the last columns of a tile are held in registers of their own, and stored box by
// box under the next tile's products.
template <typename Tile, bool kXAlongRows>
class Epilogue {
  using Rows = XRows<Tile, kXAlongRows>;
  static constexpr int kCount = Tile::kColumns / 2;  // sums of a thread
  // As many as there are registers for.
  static constexpr int kRoom = kXAlongRows ? 32 : 192 - kCount;
  static constexpr int kHeld = Tile::kThree ? 0 : kRoom < kCount ? kRoom : kCount;
  static constexpr int kBox = 16;  // sums: 32 columns

 public:
  static constexpr int kBoxes = kHeld / kBox;
  static_assert(kBoxes % 2 == 0, "the consumer's steps alternate between two sets of registers");

  __device__ Epilogue(const Params& params, Rows rows, int lane)
      : params_(params), rows_(rows), lane_(lane) {}

  // acc: of wgmma, kCount / 4 groups of 8 columns.
  __device__ void store(float (&acc)[kCount], const WorkTile& work_tile, int sub) {
    if (!params_.plain) finish(acc, work_tile, sub);
    aim(work_tile, sub);
    if constexpr (kHeld < kCount) store_part<0, kCount - kHeld>(acc);
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) held_[i] = ptx::opaque(acc[kCount - kHeld + i]);
      pending_ = true;
    }
  }

  // Whether there are boxes to be stored.
  __device__ bool pending() const { return pending_; }
  __device__ void stored() { pending_ = false; }

  // Where no tile follows.
  __device__ void store_rest() {
    if constexpr (kHeld > 0) {
      if (pending_) store_part<0, kHeld>(held_);
    }
  }

  // One after the other, from 0 on.
  template <int kIndex>
  __device__ void store_box() {
    store_part<kIndex * kBox, kBox>(held_);
  }

 private:
  __device__ void finish(float (&acc)[kCount], const WorkTile& work_tile, int sub) const {
    const int y = work_tile.y + lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int x = work_tile.x + rows_.row(sub, lane_ / 4 + i / 2 % 2 * 8);
      const float2 sums = {acc[i], acc[i + 1]};
      const float2 values = finish_pair(params_, work_tile.batch, sums, x, y + i / 4 * 8);
      acc[i] = values.x, acc[i + 1] = values.y;
    }
  }

  // Where the thread's first sums go.
  __device__ void aim(const WorkTile& work_tile, int sub) {
    const bool whole = work_tile.x + Tile::kRows <= params_.x_rows &&
                       work_tile.y + Tile::kColumns <= params_.y_rows;
    vectors_ = whole ? params_.d_vectors : Vectors::kNone;
    const int group = lane_ / 4, place = lane_ % 4;
    const int along_y = place % 2 * 8 + place / 2 * 4;
    const int y = work_tile.y + (vectors_ == Vectors::kAlongY ? along_y : place * 2);
    float* const d = params_.d + work_tile.batch * params_.d_batch_stride +
                     work_tile.split * params_.d_split_stride;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int slot = group + 8 * half;
      if (Rows::kFarBit != 0 && vectors_ == Vectors::kNone) {
        slot = (group & ~Rows::kFarBit) + half * Rows::kFarBit + (is_far() ? 8 : 0);
      }
      const int x = work_tile.x + rows_.row(sub, slot);
      d_[half] = d + x * params_.d_x_stride + y * params_.d_y_stride;
      columns_[half] = x < params_.x_rows ? params_.y_rows - y : 0;
    }
  }

  __device__ bool is_far() const { return lane_ / 4 & Rows::kFarBit; }

  // kPart sums from kFirst on, and aims at the next ones.
  template <int kFirst, int kPart, int kSize>
  __device__ void store_part(const float (&sums)[kSize]) {
    if (vectors_ == Vectors::kAlongY) {
      store_quads_along_y<kFirst, kPart>(sums);
    } else if (kXAlongRows && vectors_ == Vectors::kAlongX) {
      store_pairs_along_x<kFirst, kPart>(sums);
    } else {
      store_elements<kFirst, kPart>(sums);
    }
  }

  // Of two groups of 8 columns, lanes with an even place in their quad take the first one's.
  template <int kFirst, int kPart, int kSize>
  __device__ void store_quads_along_y(const float (&sums)[kSize]) {
    const bool odd = lane_ % 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kPart; i += 8) {
        const float* of = sums + kFirst + i + 2 * half;
        const float2 first = {of[0], of[1]}, second = {of[4], of[5]};
        const float2 kept = odd ? second : first, got = exchange<1>(odd ? first : second);
        *reinterpret_cast<float4*>(d_[half] + i * 2) =
            odd ? float4{got.x, got.y, kept.x, kept.y} : float4{kept.x, kept.y, got.x, got.y};
      }
      d_[half] += kPart * 2;
    }
  }

  // The thread's two rows are neighbours.
  template <int kFirst, int kPart, int kSize>
  __device__ void store_pairs_along_x(const float (&sums)[kSize]) {
#pragma unroll
    for (int i = kFirst; i < kFirst + kPart; i += 4) {
      *reinterpret_cast<float2*>(d_[0]) = {sums[i], sums[i + 2]};
      *reinterpret_cast<float2*>(d_[0] + params_.d_y_stride) = {sums[i + 1], sums[i + 3]};
      d_[0] += 8 * params_.d_y_stride;
    }
  }

  // Wherever D lies. Where the thread's rows are neighbours lanes exchange one of two, so that a
  // store takes eight neighbours.
  template <int kFirst, int kPart, int kSize>
  __device__ void store_elements(const float (&sums)[kSize]) {
#pragma unroll
    for (int i = kFirst; i < kFirst + kPart; i += 4) {
      float2 pairs[2] = {{sums[i], sums[i + 1]}, {sums[i + 2], sums[i + 3]}};
      if constexpr (Rows::kFarBit != 0) {
        const float2 got = exchange<4 * Rows::kFarBit>(is_far() ? pairs[0] : pairs[1]);
        pairs[0] = is_far() ? got : pairs[0];
        pairs[1] = is_far() ? pairs[1] : got;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (columns_[half] > 0) d_[half][0] = pairs[half].x;
        if (columns_[half] > 1) d_[half][params_.d_y_stride] = pairs[half].y;
        d_[half] += 8 * params_.d_y_stride, columns_[half] -= 8;
      }
    }
  }

  const Params& params_;
  Rows rows_;
  int lane_;
  Vectors vectors_;  // of this tile
  float* d_[2];      // where the next sums of both rows go
  int columns_[2];   // from there on
  float held_[kHeld > 0 ? kHeld : 1];
  bool pending_ = false;
};

}  // namespace xgemm::cuda::gemm::tf32::sm90
