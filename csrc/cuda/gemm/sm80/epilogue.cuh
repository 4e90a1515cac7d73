// From accumulators, through shared memory, to D or to split-K's partial sums.
#pragma once

#include "cuda/gemm/sm80/params.h"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/layout_index.h"

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
__device__ inline int64_t batch_offset(const Params& params, uint32_t batch,
                                       int64_t BatchDim::* stride) {
  int64_t offset = 0;
#pragma unroll 1
  for (int i = params.batch_dims - 1; i >= 0; --i) {
    const BatchDim& dim = params.batch[i];
    const auto size = static_cast<uint32_t>(dim.size);
    offset += batch % size * (dim.*stride);
    batch /= size;
  }
  return offset;
}

// Bias and activation in fp32, one rounding, four neighbouring columns (those below n). Not
// finish_quad of tile/store_quad.cuh: a 128x128 kernel spills 16 bytes more with it.
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

// A warp's [kRows, kColumns] of D, kStagedRows at a time: a row of fragments, or half of it. Each
// warp has its own staging buffer, beside the pipeline: warps do not wait for each other, and the
// next tile's copies go on. Rows go out whole, whatever their alignment.
template <typename T, int kRows, int kColumns, int kStagedRows>
class Epilogue {
 public:
  static constexpr int kGroup = 8;  // columns that swizzling keeps together
  static constexpr int kQuads = kStagedRows * kColumns / 4 / 32;  // of a lane

  __device__ Epilogue(const Params& params, float* staging, int lane)
      : params_(params), staging_(staging), lane_(lane) {}

  // acc: fragments of m16n8; the warp's tile starts at (row, column) of D.
  __device__ void store(const float (&acc)[kRows / 16][kColumns / 8][4], int64_t row,
                        int64_t column, uint32_t batch, int split) {
    T* d = static_cast<T*>(params_.d) + batch_offset(params_, batch, &BatchDim::d);
    const bool inside = row + kRows <= params_.m && column + kColumns <= params_.n;
    const bool plain = params_.bias == nullptr && params_.activation == Activation::kNone;
#pragma unroll 1  // the code for storing is there once; registers are indexed by constants only
    for (int i = 0; i < kRows / kStagedRows; ++i, row += kStagedRows) {
#pragma unroll
      for (int constant = 0; constant < kRows / kStagedRows; ++constant) {
        if (i != constant) continue;
#pragma unroll
        for (int row8 = 0; row8 < kStagedRows; row8 += 8) {
          const int first = constant * kStagedRows + row8;
          stage(acc[first / 16], first % 16 / 8, row8);
        }
      }
      __syncwarp();
      if (params_.splits > 1) {
        store_partials(row, column, split * params_.batches + batch);
      } else if (params_.d_vector && inside && plain) {
        store_plain(d + row * params_.d_row_stride + column);
      } else if (params_.d_vector) {
        store_vectors(d, row, column);
      } else {
        store_elements(d, row, column);
      }
      __syncwarp();
    }
  }

 private:
  // XOR the row into the 32-byte group: neither the fragments' rows nor the reader's collide.
  __device__ static int at(int row, int column) {
    const int group = (column / kGroup) ^ (row % (kColumns / kGroup));
    return row * kColumns + group * kGroup + column % kGroup;
  }
  // Of a lane's quads: four neighbouring columns, neighbouring lanes side by side.
  __device__ int quad_row(int i) const { return (i * 32 + lane_) / (kColumns / 4); }
  __device__ int quad_column(int i) const { return (i * 32 + lane_) % (kColumns / 4) * 4; }
  __device__ float4 quad(int i) const {
    return *reinterpret_cast<const float4*>(&staging_[at(quad_row(i), quad_column(i))]);
  }

  // The upper or the lower 8 rows of fragments, to the staging buffer's rows from `row8` on.
  __device__ void stage(const float (&acc)[kColumns / 8][4], int half, int row8) {
    const layout::Place pair_at = layout::fragment_place(8, 8, lane_, 0);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      union {
        float elements[2];
        double bits;  // one store: the two that the compiler makes of a float2 collide in banks
      } pair = {{acc[j][2 * half], acc[j][2 * half + 1]}};
      *reinterpret_cast<double*>(&staging_[at(row8 + pair_at.row, j * 8 + pair_at.column)]) =
          pair.bits;
    }
  }

  __device__ void store_partials(int64_t row0, int64_t column0, int64_t plane) {
    float* partials = params_.partials + plane * params_.m * params_.partial_stride;
#pragma unroll 2
    for (int i = 0; i < kQuads; ++i) {
      const int64_t row = row0 + quad_row(i), column = column0 + quad_column(i);
      if (row >= params_.m || column >= params_.n) continue;
      *reinterpret_cast<float4*>(&partials[row * params_.partial_stride + column]) = quad(i);
    }
  }

  // What most tiles are. `d`: of the first staged row.
  __device__ void store_plain(T* d) {
#pragma unroll 4
    for (int i = 0; i < kQuads; ++i) {
      const float4 from = quad(i);
      const float x[4] = {from.x, from.y, from.z, from.w};
      *reinterpret_cast<uint2*>(d + quad_row(i) * params_.d_row_stride + quad_column(i)) =
          pack4<T>(x);
    }
  }

  __device__ void store_vectors(T* d, int64_t row0, int64_t column0) {
#pragma unroll 1
    for (int i = 0; i < kQuads; ++i) {
      const int64_t row = row0 + quad_row(i), column = column0 + quad_column(i);
      if (row >= params_.m || column >= params_.n) continue;
      const float4 from = quad(i);
      float x[4] = {from.x, from.y, from.z, from.w};
      finish_row4<T>(params_, d, x, row, column);
    }
  }

  // Neighbouring lanes have neighbouring columns.
  __device__ void store_elements(T* d, int64_t row0, int64_t column0) {
    const T* bias = static_cast<const T*>(params_.bias);
#pragma unroll 1
    for (int i = lane_; i < kStagedRows * kColumns; i += 32) {
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
