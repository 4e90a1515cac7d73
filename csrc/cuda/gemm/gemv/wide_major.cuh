// W with contiguous columns (`a @ b` with b row-major): a lane takes 8 adjacent columns of some k.
#pragma once

#include "cuda/gemm/gemv/load.cuh"
#include "cuda/gemm/gemv/params.h"

namespace xgemm::cuda::gemm::gemv {

// What both ways to multiply share: the lane's place, its columns, its X.
template <Access kAccess, int kRows>
class WideMajorOperands {
 protected:
  __device__ WideMajorOperands(const Params& params, const uint16_t* w, const uint16_t* x,
                               int64_t column, int row)
      : params_(params), row_(row), w_stride_(static_cast<uint32_t>(params.w_stride)), x_(x) {
    columns_ = static_cast<int>(max(min(params.wide - column, int64_t{8}), int64_t{0}));
    w_ = w + column + static_cast<uint32_t>(row) * w_stride_;
  }

  // Of the lane's kRows k from k + row_ on, those before `end`.
  template <bool kWhole>
  __device__ int existing(int64_t k, int64_t end) const {
    if constexpr (kWhole) return kRows;
    return static_cast<int>(max(min(end - k - row_, int64_t{kRows}), int64_t{0}));
  }

  __device__ void load_rows(uint4 (&to)[kRows], int64_t k, int count) const {
    const uint16_t* from = w_ + k * params_.w_stride;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      to[i] = load_w<kAccess>(from + i * w_stride_, i < count ? columns_ : 0);
    }
  }

  template <bool kWhole>
  __device__ void load_x(XVector<kRows>& to, int64_t k, int few, int count) const {
    const uint32_t stride = kAccess == Access::kAligned ? 1 : params_.x_k_stride;
    const uint16_t* from =
        x_ + static_cast<uint32_t>(few) * static_cast<uint32_t>(params_.x_stride);
    to.template load<kAccess, kWhole>(from + (k + row_) * stride, few < params_.few ? count : 0,
                                      params_.x_vectors, stride);
  }

  const Params& params_;
  int row_;      // the lane's first k in a step
  int columns_;  // of the lane's 8, those that exist
  uint32_t w_stride_;
  const uint16_t *w_, *x_;
};

// One vector: multiply-adds on the CUDA cores. A load covers a row of 256 columns, or two of 128.
template <typename T, Access kAccess, int kTile_>
class WideMajorFma : WideMajorOperands<kAccess, 8> {
  using Operands = WideMajorOperands<kAccess, 8>;
  static constexpr int kLanes = kTile_ / 8;  // of a row

 public:
  static constexpr int kTile = kTile_;
  static constexpr int kStepK = 32 / kLanes * 8;

  __device__ WideMajorFma(const Params& params, const uint16_t* w, const uint16_t* x, int64_t tile,
                          int lane)
      : Operands(params, w, x, tile * kTile + lane % kLanes * 8, lane / kLanes * 8), lane_(lane) {}

  template <bool kWhole>
  __device__ void step(int64_t k, int64_t end) {
    const int count = this->template existing<kWhole>(k, end);
    uint4 w[8];
    XVector<8> x;
    this->load_rows(w, k, count);
    this->template load_x<kWhole>(x, k, 0, count);
#pragma unroll
    for (int row = 0; row < 8; ++row) {
      const float2 pair = to_float2<T>(x.word[row / 2]);
      const float xk = row % 2 == 0 ? pair.x : pair.y;
      const uint32_t ws[4] = {w[row].x, w[row].y, w[row].z, w[row].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 columns = to_float2<T>(ws[i]);
        acc_[2 * i] += xk * columns.x;
        acc_[2 * i + 1] += xk * columns.y;
      }
    }
  }

  // Stores the warp's sums as [kTile].
  __device__ void store(float* sums) const {
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      y[i] = acc_[i];
      if constexpr (kLanes == 16) y[i] += __shfl_xor_sync(~0u, y[i], 16);
    }
    if (lane_ >= kLanes) return;
    auto* to = reinterpret_cast<float4*>(sums + lane_ * 8);
    to[0] = {y[0], y[1], y[2], y[3]};
    to[1] = {y[4], y[5], y[6], y[7]};
  }

 private:
  int lane_;
  float acc_[8] = {};
};

// Up to 8 vectors: mma.sync, with W as the 16-row operand. A load covers 4 rows of 64 columns; two
// rows are interleaved into pairs along k.
template <typename T, Access kAccess>
class WideMajorMma : WideMajorOperands<kAccess, 8> {
  using Operands = WideMajorOperands<kAccess, 8>;

 public:
  static constexpr int kTile = 64;
  static constexpr int kStepK = 32;

  __device__ WideMajorMma(const Params& params, const uint16_t* w, const uint16_t* x, int64_t tile,
                          int lane)
      : Operands(params, w, x, tile * kTile + lane / 4 * 8, lane % 4 * 8), lane_(lane) {}

  template <bool kWhole>
  __device__ void step(int64_t k, int64_t end) {
    const int count = this->template existing<kWhole>(k, end);
    uint4 w[8];
    XVector<8> x;
    this->load_rows(w, k, count);
    this->template load_x<kWhole>(x, k, lane_ / 4, count);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4* row = w + 4 * i;
      const uint32_t x0 = x.word[2 * i], x1 = x.word[2 * i + 1];
      multiply(0, row[0].x, row[1].x, row[2].x, row[3].x, x0, x1);
      multiply(1, row[0].y, row[1].y, row[2].y, row[3].y, x0, x1);
      multiply(2, row[0].z, row[1].z, row[2].z, row[3].z, x0, x1);
      multiply(3, row[0].w, row[1].w, row[2].w, row[3].w, x0, x1);
    }
  }

  __device__ void store(float* sums) const {
    const int few = lane_ % 4 * 2, column = lane_ / 4 * 8;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (few + i % 2 < this->params_.few) {
          sums[(few + i % 2) * kTile + column + pair * 2 + i / 2] = acc_[pair][i];
        }
      }
    }
  }

 private:
  // Columns 2 pair and 2 pair + 1 of the lane's 8, which are mma's rows g and g + 8.
  __device__ void multiply(int pair, uint32_t k0, uint32_t k1, uint32_t k2, uint32_t k3,
                           uint32_t x0, uint32_t x1) {
    mma_m16n8k16<T>(acc_[pair], __byte_perm(k0, k1, 0x5410), __byte_perm(k0, k1, 0x7632),
                    __byte_perm(k2, k3, 0x5410), __byte_perm(k2, k3, 0x7632), x0, x1);
  }

  int lane_;
  float acc_[4][4] = {};
};

}  // namespace xgemm::cuda::gemm::gemv
