// From accumulators, through shared memory, to D or to split-K's partial sums.
#pragma once

#include "cuda/gemm/tf32/sm90/params.h"

namespace xgemm::cuda::gemm::tf32::sm90 {

struct Unit {
  int x, y, batch, split;  // first row of X, first row of Y
};

// A warp's 16 x kWidth block of D at a time, so that neighbouring lanes have neighbours in D
// whichever way D lies.
class Epilogue {
 public:
  static constexpr int kWidth = 32, kPitch = kWidth + 1;
  using Staging = float[16 * kPitch];

  __device__ Epilogue(const Params& params, Staging& staging, int lane)
      : params_(params), staging_(staging), lane_(lane) {}

  // acc: of wgmma, kCount / 4 groups of 8 columns. tile_row(slot): where the warp's slots lie.
  template <int kCount, typename TileRow>
  __device__ void store(const float (&acc)[kCount], const Unit& unit, TileRow tile_row) {
#pragma unroll
    for (int first = 0; first < kCount / 2 * 4; first += kWidth) {
      __syncwarp();  // the block before has been read
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        const int slot = lane_ / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane_ % 4 * 2 + i % 2;
        staging_[slot * kPitch + column] = acc[first / 2 + i];
      }
      __syncwarp();
      if (unit.y + first < params_.y_rows) store_block(unit, first, tile_row);
    }
  }

 private:
  template <typename TileRow>
  __device__ void store_block(const Unit& unit, int first, TileRow tile_row) {
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int slot = params_.lanes_along_x ? lane_ % 16 : i;
      const int column = params_.lanes_along_x ? i * 2 + lane_ / 16 : lane_;
      const int x = unit.x + tile_row(slot), y = unit.y + first + column;
      if (x < params_.x_rows && y < params_.y_rows) {
        store_element(staging_[slot * kPitch + column], unit, x, y);
      }
    }
  }

  __device__ void store_element(float sum, const Unit& unit, int64_t x, int64_t y) {
    float* d = params_.d + x * params_.d_x_stride + y * params_.d_y_stride +
               unit.batch * params_.d_batch_stride;
    if (params_.splits > 1) {
      d[unit.split * params_.d_split_stride] = sum;
      return;
    }
    // alpha 0 means that A B does not count, not even where it is NaN (BLAS).
    float value = params_.alpha == 0.0f ? 0.0f : params_.alpha * sum;
    if (params_.beta != 0.0f) {
      value += params_.beta * params_.c[x * params_.c_x_stride + y * params_.c_y_stride +
                                        unit.batch * params_.c_batch_stride];
    }
    if (params_.bias != nullptr) {
      value += params_.bias[x * params_.bias_x_stride + y * params_.bias_y_stride];
    }
    *d = activate(params_.activation, value);
  }

  const Params& params_;
  Staging& staging_;
  int lane_;
};

}  // namespace xgemm::cuda::gemm::tf32::sm90
