// From accumulators, through shared memory, to D or to split-K's partial sums.
#pragma once

#include "cuda/gemm/sm80/params.h"
#include "cuda/tile/convert.cuh"

namespace xgemm::cuda::gemm::sm80 {

template <typename T>
__device__ inline uint2 pack4(const float (&x)[4]) {
  union {
    T elements[4];
    uint2 words;
  } pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) pack.elements[i] = round_to<T>(x[i]);
  return pack.words;
}

// The first element of a batch's operand. `stride` is the operand's member of BatchDim.
__device__ inline int64_t batch_offset(const Params& params, int64_t batch,
                                       int64_t BatchDim::* stride) {
  int64_t offset = 0;
#pragma unroll 1
  for (int i = params.batch_dims - 1; i >= 0; --i) {
    const BatchDim& dim = params.batch[i];
    offset += batch % dim.size * (dim.*stride);
    batch /= dim.size;
  }
  return offset;
}

// Bias and activation in fp32, one rounding, four neighbouring columns (those below n).
template <typename T>
__device__ inline void finish_row4(const Params& params, T* d, float (&x)[4], int64_t row,
                                   int64_t column) {
  const T* bias = static_cast<const T*>(params.bias);
  if (bias != nullptr) {
    bias += row * params.bias_row_stride + column * params.bias_col_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i < params.n) x[i] += static_cast<float>(bias[i * params.bias_col_stride]);
    }
  }
  if (params.activation != Activation::kNone) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = activate(params.activation, x[i]);
  }
  d += row * params.d_row_stride + column * params.d_col_stride;
  if (params.d_vector && column + 4 <= params.n) {
    *reinterpret_cast<uint2*>(d) = pack4<T>(x);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i < params.n) d[i * params.d_col_stride] = round_to<T>(x[i]);
  }
}

// A warp's [kRows, kColumns] of D. Each warp has its own staging buffer, so that warps do not wait
// for each other; rows then go out whole, whatever their alignment.
template <typename T, int kRows, int kColumns>
class Epilogue {
 public:
  static constexpr int kGroup = 8;  // columns that swizzling keeps together

  __device__ Epilogue(const Params& params, float* staging, int lane)
      : params_(params), staging_(staging), lane_(lane) {}

  // acc: fragments of m16n8; the warp's tile starts at (row, column) of D.
  __device__ void store(const float (&acc)[kRows / 16][kColumns / 8][4], int64_t row,
                        int64_t column, int64_t batch, int split) {
    stage(acc);
    __syncwarp();
    if (params_.splits > 1) {
      store_partials(row, column, split * params_.batches + batch);
      return;
    }
    T* d = static_cast<T*>(params_.d) + batch_offset(params_, batch, &BatchDim::d);
    if (params_.d_vector) {
      store_vectors(d, row, column);
    } else {
      store_elements(d, row, column);
    }
  }

 private:
  // XOR the row into the 32-byte group: neither the fragments' rows nor the reader's collide.
  __device__ static int at(int row, int column) {
    const int group = (column / kGroup) ^ (row % (kColumns / kGroup));
    return row * kColumns + group * kGroup + column % kGroup;
  }

  __device__ void stage(const float (&acc)[kRows / 16][kColumns / 8][4]) {
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const int row = i * 16 + lane_ / 4, column = j * 8 + lane_ % 4 * 2;
        *reinterpret_cast<float2*>(&staging_[at(row, column)]) = {acc[i][j][0], acc[i][j][1]};
        *reinterpret_cast<float2*>(&staging_[at(row + 8, column)]) = {acc[i][j][2], acc[i][j][3]};
      }
    }
  }

  __device__ void store_partials(int64_t row0, int64_t column0, int64_t plane) {
    float* partials = params_.partials + plane * params_.m * params_.partial_stride;
#pragma unroll 4
    for (int i = lane_; i < kRows * kColumns / 4; i += 32) {
      const int row = i / (kColumns / 4), column = i % (kColumns / 4) * 4;
      if (row0 + row >= params_.m || column0 + column >= params_.n) continue;
      const float4 x = *reinterpret_cast<const float4*>(&staging_[at(row, column)]);
      *reinterpret_cast<float4*>(
          &partials[(row0 + row) * params_.partial_stride + column0 + column]) = x;
    }
  }

  __device__ void store_vectors(T* d, int64_t row0, int64_t column0) {
#pragma unroll 1
    for (int i = lane_; i < kRows * kColumns / 4; i += 32) {
      const int row = i / (kColumns / 4), column = i % (kColumns / 4) * 4;
      if (row0 + row >= params_.m || column0 + column >= params_.n) continue;
      const float4 from = *reinterpret_cast<const float4*>(&staging_[at(row, column)]);
      float x[4] = {from.x, from.y, from.z, from.w};
      finish_row4<T>(params_, d, x, row0 + row, column0 + column);
    }
  }

  // Neighbouring lanes have neighbouring columns.
  __device__ void store_elements(T* d, int64_t row0, int64_t column0) {
    const T* bias = static_cast<const T*>(params_.bias);
#pragma unroll 1
    for (int i = lane_; i < kRows * kColumns; i += 32) {
      const int64_t row = row0 + i / kColumns, column = column0 + i % kColumns;
      if (row >= params_.m || column >= params_.n) continue;
      float x = staging_[at(i / kColumns, i % kColumns)];
      if (bias != nullptr) {
        x += static_cast<float>(
            bias[row * params_.bias_row_stride + column * params_.bias_col_stride]);
      }
      d[row * params_.d_row_stride + column * params_.d_col_stride] =
          round_to<T>(activate(params_.activation, x));
    }
  }

  const Params& params_;
  float* staging_;
  int lane_;
};

}  // namespace xgemm::cuda::gemm::sm80
