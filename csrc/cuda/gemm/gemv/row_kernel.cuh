// One or two vectors by a W with contiguous k: a CTA has as many rows of W as there are vectors.
//
// All its warps read a row side by side, so that few rows are open at a time, each in long runs,
// and with up to 8192 k a thread asks for all it wants at once: 1x10240x8192 takes 45.2 us, where
// gemv_kernel takes 47.4. A CTA lives for two microseconds, and 57344 rows are 109 of them one
// behind the other, so that what it does before its first load and after its last counts (those of
// gemv_kernel: 240 us instead of 222). So there are no splits of k and at most one batch dimension,
// rows are aligned, and k is a multiple of 8.
#pragma once

#include "cuda/gemm/gemv/kernel.cuh"
#include "cuda/ptx/opaque.h"

namespace xgemm::cuda::gemm::gemv {

template <typename T>
__device__ inline float add_products(uint4 w, uint4 x, float sum) {
  const uint32_t ws[4] = {w.x, w.y, w.z, w.w}, xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a = to_float2<T>(ws[i]), b = to_float2<T>(xs[i]);
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
  }
  return sum;
}

// Grid: (rows / kNarrow, 1, batches). kNarrow: vectors, and rows of W.
template <typename T, int kNarrow, bool kHopper>
__global__ void __launch_bounds__(kRowWarps * 32 / kNarrow, 4)
    row_kernel(const __grid_constant__ Params params) {
  constexpr int kLoads = 2, kStepK = kLoads * 256;  // of a row, by a warp at once
  constexpr int kMaxWarps = kRowWarps / kNarrow, kOutputs = kNarrow * kNarrow;
  using Sums = float[kOutputs][kMaxWarps];
  XGEMM_STATIC_SHARED(Sums, sums);
  if constexpr (kHopper) ptx::griddep_launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int row = blockIdx.x * kNarrow, at = warp * kStepK + lane * 8;
  const uint32_t batch = params.first_batch + blockIdx.z;
  // What is the same for all threads first: it takes one instruction each then.
  const auto* w = static_cast<const uint16_t*>(params.w) + batch * params.batch[0].w;
  const auto* x = static_cast<const uint16_t*>(params.x) + batch * params.batch[0].x;
  const uint16_t *w_rows[kNarrow], *x_rows[kNarrow];
#pragma unroll
  for (int i = 0; i < kNarrow; ++i) {
    // A row past the end reads the last one again; its sums are not stored. Opaque, or all of it
    // would be computed between the loads.
    const auto of_w = static_cast<uint32_t>(i == 0 ? row : min(row + i, params.wide - 1));
    const auto stride = static_cast<uint32_t>(params.w_stride);  // as is every stride of gemv's
    w_rows[i] = ptx::opaque(w + uint64_t{of_w} * stride + at);
    x_rows[i] = ptx::opaque(x + i * params.x_stride + at);
  }
  float acc[kNarrow][kNarrow] = {};
  if constexpr (kHopper) ptx::griddep_wait();
#pragma unroll 1
  for (int left = params.k - at; left > 0; left -= warps * kStepK) {
    uint4 ws[kLoads][kNarrow], xs[kLoads][kNarrow];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
#pragma unroll
      for (int i = 0; i < kNarrow; ++i) {
        if (load > 0) ws[load][i] = xs[load][i] = {};
        if (load > 0 && load * 256 >= left) continue;
        ws[load][i] = ptx::ld_global_nc_no_allocate(w_rows[i] + load * 256, params.w_policy);
        xs[load][i] = ptx::ld_global_nc(x_rows[i] + load * 256);
      }
    }
#pragma unroll
    for (int i = 0; i < kNarrow; ++i) w_rows[i] += warps * kStepK, x_rows[i] += warps * kStepK;
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        float& sum = acc[i / kNarrow][i % kNarrow];
        sum = add_products<T>(ws[load][i % kNarrow], xs[load][i / kNarrow], sum);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    float y = acc[i / kNarrow][i % kNarrow];
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) y += __shfl_xor_sync(~0u, y, mask);
    if (lane == 0) sums[i][warp] = y;
  }
  __syncthreads();
  if (warp > 0) return;
  constexpr int kLanes = 32 / kOutputs;  // of an output
  static_assert(kLanes >= kMaxWarps);
  const int output = lane / kLanes, narrow = output / kNarrow, wide = row + output % kNarrow;
  float y = lane % kLanes < warps ? sums[output][lane % kLanes] : 0.0f;
#pragma unroll
  for (int mask = 1; mask < kMaxWarps; mask *= 2) y += __shfl_xor_sync(~0u, y, mask);
  if (lane % kLanes == 0 && wide < params.wide) {
    store_result(params, static_cast<T*>(params.d) + batch * params.batch[0].d, narrow, wide, y);
  }
}

}  // namespace xgemm::cuda::gemm::gemv
