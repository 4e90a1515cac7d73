// W with contiguous k (`x @ w.t()`, or `a @ x` by rows of a): W is the 16-row operand of mma.sync.
//
// In mma a group of 4 lanes has a row of W, and a lane takes the same k of W and of X; which k that
// is does not matter, so a lane takes 16 adjacent bytes: two mma's worth, with no shared memory.
// Memory likes long runs, though, and 8 rows a load would be runs of 64 bytes. So a load covers
// 8 / kPhases rows, and kPhases groups share a row, each at other k: its phase. As a column of
// mma's X operand has one k for all groups, every vector of X takes kPhases columns, one for each
// phase, and of a group's sums only those of its own phase count.
#pragma once

#include "cuda/gemm/gemv/load.cuh"
#include "cuda/gemm/gemv/params.h"
#include "cuda/ptx/mma_sm80.h"

namespace xgemm::cuda::gemm::gemv {

template <typename T, Access kAccess, int kNarrow, int kPhases>
class KMajorStream {
 public:
  static constexpr int kTile = 16 / kPhases;  // rows of W: two loads
  static constexpr int kChunks = 2;
  static constexpr int kChunkK = 32 * kPhases;
  static constexpr int kStepK = kChunks * kChunkK;
  static constexpr int kXTiles = kNarrow * kPhases / 8;  // of 8 columns
  static_assert(kNarrow * kPhases % 8 == 0, "the phases of all vectors must fill mma's columns");
  static_assert(kPhases >= 2, "a lane must have one phase, of the two columns that mma gives it");

  __device__ KMajorStream(const Params& params, const uint16_t* w, const uint16_t* x, int tile,
                          int lane)
      : params_(params), lane_(lane), k_of_lane_(lane % (4 * kPhases) * 8) {
    // Rows past the end read the last one again; their sums are not stored.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = tile * kTile + i * (8 / kPhases) + lane / (4 * kPhases);
      w_[i] = w + min(row, params.wide - 1) * params.w_stride + k_of_lane_;
    }
#pragma unroll
    for (int i = 0; i < kXTiles; ++i) {
      const int row = min((i * 8 + lane / 4) / kPhases, params.narrow - 1);
      x_[i] = x + row * params.x_stride + k_of_lane_ * x_k_stride();
    }
  }

  // Adds the step at k; kWhole: it lies before `end`.
  template <bool kWhole>
  __device__ void step(int k, int end) {
    uint4 w[kChunks][2], x[kChunks][kXTiles];
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int at = k + chunk * kChunkK;
      const int count = kWhole ? 8 : max(min(end - at - k_of_lane_, 8), 0);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        w[chunk][i] = load_w<kAccess>(w_[i] + at, count);
        if constexpr (!kWhole) w[chunk][i] = keep_first(w[chunk][i], count);
      }
#pragma unroll
      for (int i = 0; i < kXTiles; ++i) {
        x[chunk][i] = load_x<kAccess, kWhole>(x_[i] + at * x_k_stride(), count, params_.x_vectors,
                                              x_k_stride());
      }
    }
    __syncwarp();  // else the compiler puts products before the last loads, and waits there
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 a = w[chunk][0], b = w[chunk][1];
#pragma unroll
      for (int i = 0; i < kXTiles; ++i) {
        ptx::mma_m16n8k16<T>(acc_[i], a.x, b.x, a.y, b.y, x[chunk][i].x, x[chunk][i].y);
        ptx::mma_m16n8k16<T>(acc_[i], a.z, b.z, a.w, b.w, x[chunk][i].z, x[chunk][i].w);
      }
    }
  }

  // Stores the warp's sums as [narrow][kTile].
  __device__ void store(float* sums) const {
    const int group = lane_ / 4, phase = group % kPhases;
#pragma unroll
    for (int tile = 0; tile < kXTiles; ++tile) {
      const int column = tile * 8 + lane_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* to = sums + i * (8 / kPhases) + group / kPhases;
        const float* acc = acc_[tile] + 2 * i;
        float y = phase % 2 == 0 ? acc[0] : acc[1];
        if ((column + phase % 2) % kPhases != phase) y = 0.0f;  // not its phase
#pragma unroll
        for (int mask = 1; mask < kPhases / 2; mask *= 2) y += __shfl_xor_sync(~0u, y, mask);
#pragma unroll
        for (int mask = 4; mask < 4 * kPhases; mask *= 2) y += __shfl_xor_sync(~0u, y, mask);
        const bool leads = phase == 0 && column % kPhases == 0;
        if (leads && column / kPhases < params_.narrow) to[column / kPhases * kTile] = y;
      }
    }
  }

 private:
  __device__ int64_t x_k_stride() const {
    return kAccess == Access::kAligned ? 1 : params_.x_k_stride;
  }

  const Params& params_;
  int lane_, k_of_lane_;
  const uint16_t *w_[2], *x_[kXTiles];
  float acc_[kXTiles][4] = {};
};

}  // namespace xgemm::cuda::gemm::gemv
