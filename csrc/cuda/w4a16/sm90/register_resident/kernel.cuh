// W4A16 for one row of X and weights that fit into all SMs' registers: each lane asks for X
// and all of its part by its first instructions, multiplies, and the CTA adds up its warps' sums.
//
// Such a product takes little more than memory's latency, so there is nothing but what it needs: no
// pipeline, no barriers for it, no clusters, no warps of their own for sums.
#pragma once

#include <type_traits>

#include "cuda/ptx/bulk_load_policy.h"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/ld_st.h"
#include "cuda/ptx/ld_streaming.h"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/convert.cuh"
#include "cuda/w4a16/sm90/register_resident/params.h"
#include "cuda/w4a16/sm90/skinny/dequant.cuh"

namespace xgemm::cuda::w4a16::sm90::register_resident {

using skinny::Codes;
using skinny::scale_to_float;

// The commonest format, which is all that the kernel takes: groups of a unit's 128 channels, no
// zero points.
inline constexpr int kScalesBytes = w4::kStripColumns * w4::kScaleBytes;  // of a strip's unit
inline constexpr int kStripBytes = w4::kStripCodeBytes + kScalesBytes;
inline constexpr int kUnitBytes = kStripBytes * (w4::kRowColumns / w4::kStripColumns);

// A lane's part of a strip's unit. What is read once need not push anything out of L2.
struct Piece {
  uint4 codes[2];
  uint32_t scale;  // of column gid, or with an odd tig of gid + 8

  __device__ void load_codes(const uint8_t* from, uint32_t lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      codes[i] = ptx::ld_global_nc_no_allocate(from + i * (w4::kStripCodeBytes / 2) + lane * 16,
                                               ptx::kEvictFirst);
    }
  }
  __device__ void load_scale(const uint8_t* from, uint32_t lane) {
    from += w4::kStripCodeBytes + (lane / 4 + lane % 2 * 8) * w4::kScaleBytes;
    scale = ptx::ld_global_streaming(reinterpret_cast<const uint16_t*>(from));
  }
};

inline constexpr int kSteps = w4::kUnitK / 16;  // mma over a unit
using UnitOfX = uint32_t[kSteps / 2][4];        // mma's second operand

// Asks for a warp's channels of X, the first one to `to`. What is beyond K is 0.
__device__ __forceinline__ void ask_x(const Params& p, uint32_t to, uint32_t first_channel,
                                      uint32_t lane) {
  static_assert(kUnits * w4::kUnitK == 32 * 8, "a lane has 8 channels");
  const int channel = static_cast<int>(first_channel + lane * 8);
  const int valid = min(max(p.k - channel, 0), 8) * 2;
  const uint16_t* from = p.x + (valid > 0 ? channel : 0);
  ptx::cp_async<16>(to + lane * 16, from, valid);
  ptx::cp_async_commit_group();
}

__device__ __forceinline__ void load_x(UnitOfX& x, uint32_t from, int unit) {
#pragma unroll
  for (int i = 0; i < kSteps / 2; ++i) {
    ptx::ldmatrix_x4(x[i], from + unit * (w4::kUnitK * 2) + i * 64);
  }
}

// The sum of X over a unit, by an mma against ones: what zero points are multiplied by.
template <typename T>
__device__ __forceinline__ float sum_of(const UnitOfX& x) {
  constexpr uint32_t kOne = Codes<T>::kUnits, kOnes[4] = {kOne, kOne, kOne, kOne};
  // Two sums, so that a warp waits less for its own results.
  float sum[2][4] = {};
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    ptx::mma_m16n8k16<T>(sum[i % 2], kOnes, x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
  }
  return sum[0][0] + sum[1][0];
}

// Adds the product of a piece with a unit of X.
template <typename T>
__device__ __forceinline__ void multiply(float (&sum)[4], const Piece& piece, const UnitOfX& x,
                                         float x_sum, bool bf16_scales, uint32_t lane) {
  constexpr bool kShared = Codes<T>::kMayShare;
  // Minus the zero point of columns gid and gid + 8, in the terms of mma's products.
  constexpr float kLower = -(w4::kSymmetricZero + Codes<T>::kOffset);
  constexpr float kUpper = kLower * (Codes<T>::kUpper + (kShared ? 1.0f : 0.0f));
  const auto& [low, high] = piece.codes;
  const float scale = scale_to_float(piece.scale, bf16_scales);
  const float scales[2] = {__shfl_sync(~0u, scale, lane & ~1u), __shfl_sync(~0u, scale, lane | 1u)};
  const uint32_t words[kSteps] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  float product[2][4] = {{kLower * x_sum, kLower * x_sum, kUpper * x_sum, kUpper * x_sum}};
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    uint32_t a[4];
    Codes<T>::template expand<kShared>(words[i], a);
    ptx::mma_m16n8k16<T>(product[i % 2], a, x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) product[0][i] += product[1][i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float own = product[0][i] - (kShared && i >= 2 ? product[0][i - 2] : 0.0f);
    sum[i] = fmaf(scales[i / 2], own, sum[i]);
  }
}

// Adds up the warps' sums of D's elements, and stores them; for all threads.
template <typename T>
__device__ __forceinline__ void reduce(const Params& p, const float* sums) {
  const uint32_t warps = blockDim.x / 32, own = threadIdx.x;
  const int column = static_cast<int>(blockIdx.x * w4::kStripColumns + own);
  if (own >= w4::kStripColumns || column >= p.n) return;
  float part[4] = {};
#pragma unroll
  for (int warp = 0; warp < kMaxWarps; ++warp) {
    if (warp < warps) part[warp % 4] += sums[warp * kWarpSums + own];
  }
  // In the terms of mma's products, in which columns 8 to 15 of a strip are larger.
  float y = (part[0] + part[1]) + (part[2] + part[3]);
  y *= 1.0f / Codes<T>::kUnit / ((own & 8) == 0 ? 1.0f : Codes<T>::kUpper);
  if (p.bias != nullptr) {
    y += scale_to_float(p.bias[column * p.bias_stride], std::is_same_v<T, __nv_bfloat16>);
  }
  if (p.activation != Activation::kNone) [[unlikely]]
    y = activate(p.activation, y);
  reinterpret_cast<T*>(p.d)[column * p.d_stride] = round_to<T>(y);
}

template <typename T>
__global__ void __launch_bounds__(kMaxWarps * 32, 1)
    register_resident_kernel(const __grid_constant__ Params p) {
  XGEMM_DYNAMIC_SHARED(uint8_t, smem, 128);
  // By a shuffle, which tells the compiler that a warp has one value of it.
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t first_unit = warp * kUnits, strip = blockIdx.x;
  // Beyond the last unit it reads that again: for products with zeros.
  const uint8_t* from[kUnits];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    from[unit] = p.weight + strip / 4 * p.row_bytes + strip % 4 * kStripBytes +
                 min(first_unit + unit, p.units - 1u) * kUnitBytes;
  }
  ptx::griddep_wait();
  const uint32_t x_to = ptx::smem_address(smem) + first_unit * (w4::kUnitK * 2);
  ask_x(p, x_to, first_unit * w4::kUnitK, lane);
  Piece pieces[kUnits];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) pieces[unit].load_codes(from[unit], lane);
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) pieces[unit].load_scale(from[unit], lane);
  ptx::cp_async_wait_group<0>();
  __syncwarp();

  // All 8 rows of mma's operand are X; the products of one are used.
  const uint32_t x_from = x_to + lane / 8 * 16;
  const bool bf16_scales = std::is_same_v<T, __nv_bfloat16> && p.bf16_scales;
  float sums[4] = {};
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    UnitOfX x;
    load_x(x, x_from, unit);
    multiply<T>(sums, pieces[unit], x, sum_of<T>(x), bf16_scales, lane);
  }

  float* all = reinterpret_cast<float*>(smem + p.sums);
  if (lane % 4 == 0) {
    float* to = all + warp * kWarpSums + lane / 4;
    to[0] = sums[0], to[8] = sums[2];
  }
  __syncthreads();
  ptx::griddep_launch_dependents();  // after the wait: what is older than this kernel has ended
  reduce<T>(p, all);
}

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
