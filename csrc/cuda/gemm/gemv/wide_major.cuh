// W with contiguous columns (`a @ b` with b row-major): a lane takes 8 adjacent columns of some k.
#pragma once

#include "cuda/gemm/gemv/load.cuh"
#include "cuda/gemm/gemv/params.h"
#include "cuda/ptx/mma_sm80.h"

namespace xgemm::cuda::gemm::gemv {

// What both ways to multiply share: the lane's 8 columns of 8 k, and those 8 k of a row of X.
template <Access kAccess>
class WideMajorOperands {
 protected:
  // From `column` on, and from the k of a step + `row` on, with row `narrow` of X.
  __device__ WideMajorOperands(const Params& params, const uint16_t* w, const uint16_t* x,
                               int column, int row, int narrow)
      : params_(params), row_(row), columns_(max(min(params.wide - column, 8), 0)) {
    w_ = w + column + row * params.w_stride;
    // Rows past the end read the last one again; their sums are not stored.
    x_ = x + min(narrow, params.narrow - 1) * params.x_stride + row * x_k_stride();
  }

  // kWhole: the step lies before `end`.
  template <bool kWhole>
  __device__ void load(uint4 (&w)[8], uint4& x, int k, int end) const {
    const int count = kWhole ? 8 : max(min(end - k - row_, 8), 0);
    const uint16_t* from = w_ + k * params_.w_stride;
    const auto stride = static_cast<uint32_t>(params_.w_stride);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      w[i] = load_w<kAccess>(from + i * stride, i < count ? columns_ : 0);
    }
    x = load_x<kAccess, kWhole>(x_ + k * x_k_stride(), count, params_.x_vectors, x_k_stride());
  }

  const Params& params_;

 private:
  __device__ int64_t x_k_stride() const {
    return kAccess == Access::kAligned ? 1 : params_.x_k_stride;
  }

  int row_;
  int columns_;  // of the lane's 8, those that exist
  const uint16_t *w_, *x_;
};

// One vector: multiply-adds on the CUDA cores. A load covers kRows rows of 256 / kRows columns.
template <typename T, Access kAccess, int kRows>
class WideMajorFma : WideMajorOperands<kAccess> {
  using Operands = WideMajorOperands<kAccess>;
  static constexpr int kLanes = 32 / kRows;  // of a row

 public:
  static constexpr int kTile = 8 * kLanes;
  static constexpr int kStepK = 8 * kRows;

  __device__ WideMajorFma(const Params& params, const uint16_t* w, const uint16_t* x, int tile,
                          int lane)
      : Operands(params, w, x, tile * kTile + lane % kLanes * 8, lane / kLanes * 8, 0),
        lane_(lane) {}

  template <bool kWhole>
  __device__ void step(int k, int end) {
    uint4 w[8], x;
    this->template load<kWhole>(w, x, k, end);
    __syncwarp();  // else the compiler puts products before the last loads, and waits there
    const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int row = 0; row < 8; ++row) {
      const float2 pair = to_float2<T>(pairs[row / 2]);
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
#pragma unroll
      for (int mask = kLanes; mask < 32; mask *= 2) y[i] += __shfl_xor_sync(~0u, y[i], mask);
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
class WideMajorMma : WideMajorOperands<kAccess> {
  using Operands = WideMajorOperands<kAccess>;

 public:
  static constexpr int kTile = 64;
  static constexpr int kStepK = 32;

  __device__ WideMajorMma(const Params& params, const uint16_t* w, const uint16_t* x, int tile,
                          int lane)
      : Operands(params, w, x, tile * kTile + lane / 4 * 8, lane % 4 * 8, lane / 4), lane_(lane) {}

  template <bool kWhole>
  __device__ void step(int k, int end) {
    uint4 w[8], x;
    this->template load<kWhole>(w, x, k, end);
    __syncwarp();  // else the compiler puts products before the last loads, and waits there
    multiply(w, x.x, x.y);
    multiply(w + 4, x.z, x.w);
  }

  __device__ void store(float* sums) const {
    const int narrow = lane_ % 4 * 2, column = lane_ / 4 * 8;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (narrow + i % 2 < this->params_.narrow) {
          sums[(narrow + i % 2) * kTile + column + pair * 2 + i / 2] = acc_[pair][i];
        }
      }
    }
  }

 private:
  // Rows 0 ... 3 of w.
  __device__ void multiply(const uint4* w, uint32_t x0, uint32_t x1) {
    multiply_pair(acc_[0], w[0].x, w[1].x, w[2].x, w[3].x, x0, x1);
    multiply_pair(acc_[1], w[0].y, w[1].y, w[2].y, w[3].y, x0, x1);
    multiply_pair(acc_[2], w[0].z, w[1].z, w[2].z, w[3].z, x0, x1);
    multiply_pair(acc_[3], w[0].w, w[1].w, w[2].w, w[3].w, x0, x1);
  }

  // Two adjacent columns of 4 rows: the lower is mma's row g, the upper its row g + 8.
  __device__ static void multiply_pair(float (&acc)[4], uint32_t k0, uint32_t k1, uint32_t k2,
                                       uint32_t k3, uint32_t x0, uint32_t x1) {
    ptx::mma_m16n8k16<T>(acc, __byte_perm(k0, k1, 0x5410), __byte_perm(k0, k1, 0x7632),
                         __byte_perm(k2, k3, 0x5410), __byte_perm(k2, k3, 0x7632), x0, x1);
  }

  int lane_;
  float acc_[4][4] = {};
};

}  // namespace xgemm::cuda::gemm::gemv
