// From accumulators to D, or to split-K's partial sums.
#pragma once

#include "cuda/gemm/tf32/sm90/params.h"

namespace xgemm::cuda::gemm::tf32::sm90 {

struct Unit {
  int x, y, batch, split;  // first row of X, first row of Y
};

// Sums of two neighbouring rows of Y to D, with all that an epilogue may do. Not inlined: a thread
// has tens of them.
__device__ __noinline__ inline void finish_pair(const Params& params, int batch, float2 sums,
                                                int64_t x, int64_t y) {
  const float both[2] = {sums.x, sums.y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (y + i >= params.y_rows) return;
    // alpha 0 means that A B does not count, not even where it is NaN (BLAS).
    float value = params.alpha == 0.0f ? 0.0f : params.alpha * both[i];
    if (params.beta != 0.0f) {
      value += params.beta * params.c[x * params.c_x_stride + (y + i) * params.c_y_stride +
                                      batch * params.c_batch_stride];
    }
    if (params.bias != nullptr) {
      value += params.bias[x * params.bias_x_stride + (y + i) * params.bias_y_stride];
    }
    params.d[x * params.d_x_stride + (y + i) * params.d_y_stride + batch * params.d_batch_stride] =
        activate(params.activation, value);
  }
}

// Straight from registers: 4 lanes have 8 neighbouring columns of a row, 8 lanes the rows below, so
// a store writes whole sectors whichever way D lies.
class Epilogue {
 public:
  __device__ Epilogue(const Params& params, int lane) : params_(params), lane_(lane) {}

  // acc: of wgmma, kCount / 4 groups of 8 columns. tile_row(slot): where the warp's slots lie.
  // kQuads: four slots are neighbours, and the next four are those eight later.
  template <bool kQuads, int kCount, typename TileRow>
  __device__ void store(const float (&acc)[kCount], const Unit& unit, TileRow tile_row) const {
    const int y = unit.y + lane_ % 4 * 2, group = lane_ / 4;
    int x[2];
    float* d[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = kQuads ? group % 4 + 4 * half + group / 4 * 8 : group + 8 * half;
      x[half] = unit.x + tile_row(slot);
      d[half] = params_.d + x[half] * params_.d_x_stride + y * params_.d_y_stride +
                unit.batch * params_.d_batch_stride + unit.split * params_.d_split_stride;
    }
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      float2 sums[2] = {{acc[i], acc[i + 1]}, {acc[i + 2], acc[i + 3]}};
      if constexpr (kQuads) join_quads(sums);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (x[half] < params_.x_rows) store_pair(sums[half], unit, x[half], y + 2 * i, d[half]);
        d[half] += 8 * params_.d_y_stride;
      }
    }
  }

 private:
  __device__ void store_pair(float2 sums, const Unit& unit, int x, int y, float* d) const {
    if (y >= params_.y_rows) return;
    if (!params_.plain) {
      finish_pair(params_, unit.batch, sums, x, y);
    } else if (params_.d_pairs && y + 1 < params_.y_rows) {
      *reinterpret_cast<float2*>(d) = sums;
    } else {
      d[0] = sums.x;
      if (y + 1 < params_.y_rows) d[params_.d_y_stride] = sums.y;
    }
  }

  // Half 0 becomes slots 0 to 3 and 8 to 11, half 1 the others: eight neighbours each.
  __device__ void join_quads(float2 (&sums)[2]) const {
    const bool upper = lane_ >= 16;
    const float2 mine = upper ? sums[0] : sums[1];
    const float2 other = {__shfl_xor_sync(~0u, mine.x, 16), __shfl_xor_sync(~0u, mine.y, 16)};
    sums[0] = upper ? other : sums[0];
    sums[1] = upper ? sums[1] : other;
  }

  const Params& params_;
  int lane_;
};

}  // namespace xgemm::cuda::gemm::tf32::sm90
