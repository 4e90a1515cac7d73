// From the accumulators of a tile to D.
#pragma once

#include "common/activation.h"
#include "cuda/gemm/sm90/small/params.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/stmatrix.h"
#include "cuda/tile/convert.cuh"

namespace xgemm::cuda::gemm::sm90::small {

inline constexpr int kMultipliers = 1;  // a barrier of the two warpgroups that multiply

// One warp's 16 rows of D, kColumns of them: through shared memory, so that threads write 16 bytes
// each of few rows at once.
template <typename T, int kColumns>
class WarpStore {
  static constexpr int kPitch = kColumns + 8;  // elements: free of bank conflicts

 public:
  static constexpr int kBytes = 16 * kPitch * 2;

  __device__ WarpStore(const Params& params, void* staging, int lane)
      : params_(params), staging_(static_cast<T*>(staging)), lane_(lane) {}

  // sums: in wgmma's layout, from row m and column n of D on.
  __device__ void store(float (&sums)[kColumns / 2], int m, int n, T* d) const {
    finish(sums, n);
    const int matrix = lane_ / 8;
    T* to = staging_ + (matrix % 2 * 8 + lane_ % 8) * kPitch + matrix / 2 * 8;
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const float* x = sums + 4 * j;
      ptx::stmatrix_x4(to + j * 8, pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]),
                       pack2<T>(x[6], x[7]));
    }
    __syncwarp();
    if (!params_.vector_store) [[unlikely]]
      return store_elements(m, n, d);
    constexpr int kPieces = kColumns / 8;
    const int row = lane_ / kPieces, column = lane_ % kPieces * 8;
    if (n + column >= params_.n) return;
    const T* from = staging_ + row * kPitch + column;
    d += (m + row) * params_.d_row_stride + n + column;
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) {
      constexpr int kRows = 32 / kPieces;
      const uint4 piece = *reinterpret_cast<const uint4*>(from + i * kRows * kPitch);
      if (m + row + i * kRows < params_.m) *reinterpret_cast<uint4*>(d) = piece;
      d += kRows * params_.d_row_stride;
    }
  }

 private:
  __device__ void finish(float (&sums)[kColumns / 2], int n) const {
    if (params_.bias != nullptr) [[unlikely]] {
      const T* bias = static_cast<const T*>(params_.bias);
#pragma unroll
      for (int i = 0; i < kColumns / 4; ++i) {
        const int column = min(n + i / 2 * 8 + lane_ % 4 * 2 + i % 2, params_.n - 1);
        const auto x = static_cast<float>(bias[column * params_.bias_stride]);
        sums[i / 2 * 4 + i % 2] += x;
        sums[i / 2 * 4 + i % 2 + 2] += x;
      }
    }
    if (params_.activation != Activation::kNone) [[unlikely]] {
#pragma unroll 1
      for (int i = 0; i < kColumns / 2; ++i) {  // in turns through the first: one copy of its code
        const float x = activate(params_.activation, sums[0]);
#pragma unroll
        for (int j = 0; j < kColumns / 2 - 1; ++j) sums[j] = sums[j + 1];
        sums[kColumns / 2 - 1] = x;
      }
    }
  }

  // Neighbouring lanes write neighbours along the dimension of D that is contiguous.
  __device__ void store_elements(int m, int n, T* d) const {
    const bool by_column = params_.d_row_stride == 1;
#pragma unroll 1
    for (int i = lane_; i < 16 * kColumns; i += 32) {
      const int row = by_column ? i % 16 : i / kColumns, column = by_column ? i / 16 : i % kColumns;
      if (m + row < params_.m && n + column < params_.n) {
        d[(m + row) * params_.d_row_stride + (n + column) * params_.d_col_stride] =
            staging_[row * kPitch + column];
      }
    }
  }

  const Params& params_;
  T* staging_;
  int lane_;
};

// What the functions below want to have of shared memory.
template <typename T, int kColumns, int kSharers>
constexpr int staging_bytes() {
  const int sums = kSharers > 1 ? kColumns / 8 * 128 * 16 : 0;
  return sums + 8 * WarpStore<T, kColumns / kSharers>::kBytes;
}

// acc: 64 rows of D from m on, this warpgroup's own. Both have `staging`, which is free.
template <typename T, int kColumns>
__device__ inline void store(const Params& params, void* staging, float (&acc)[kColumns / 2],
                             int warpgroup, int m, int n, T* d) {
  using Store = WarpStore<T, kColumns>;
  const int warp = threadIdx.x / 32 % 4;
  char* own = static_cast<char*>(staging) + (warpgroup * 4 + warp) * Store::kBytes;
  Store(params, own, threadIdx.x % 32).store(acc, m + warp * 16, n, d);
}

// Columns from kFirst on of the 64 rows of which both warpgroups have a part: this one sends the
// other's, and finishes its own.
template <typename T, int kColumns, int kFirst>
__device__ inline void add_half(const Params& params, float4* mail, float (&acc)[kColumns / 2],
                                int m, int n, T* d) {
  constexpr int kHalf = kColumns / 2, kTheirs = kHalf - kFirst, kVectors = kHalf / 8;
  const int thread = threadIdx.x % 128, warp = thread / 32;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const float* x = acc + kTheirs / 2 + 4 * j;
    mail[(kTheirs / 8 + j) * 128 + thread] = make_float4(x[0], x[1], x[2], x[3]);
  }
  ptx::named_barrier_sync_apart(kMultipliers, 256);  // the other comes from its own instance
  float sums[kHalf / 2];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const float4 x = mail[(kFirst / 8 + j) * 128 + thread];
    const float* own = acc + kFirst / 2 + 4 * j;
    sums[4 * j] = own[0] + x.x, sums[4 * j + 1] = own[1] + x.y;
    sums[4 * j + 2] = own[2] + x.z, sums[4 * j + 3] = own[3] + x.w;
  }
  using Store = WarpStore<T, kHalf>;
  char* staging = reinterpret_cast<char*>(mail + kColumns / 8 * 128);
  Store(params, staging + threadIdx.x / 32 * Store::kBytes, threadIdx.x % 32)
      .store(sums, m + warp * 16, n + kFirst, d);
}

// acc: this warpgroup's part of the sums over k of the 64 rows of D from m on.
template <typename T, int kColumns>
__device__ inline void add_and_store(const Params& params, void* staging,
                                     float (&acc)[kColumns / 2], int warpgroup, int m, int n,
                                     T* d) {
  auto* mail = static_cast<float4*>(staging);
  if (warpgroup == 0) {
    add_half<T, kColumns, 0>(params, mail, acc, m, n, d);
  } else {
    add_half<T, kColumns, kColumns / 2>(params, mail, acc, m, n, d);
  }
}

}  // namespace xgemm::cuda::gemm::sm90::small
