// D = X W for a few rows of X: a stream over W, from global memory straight into registers.
//
// A CTA has one tile of `wide` and, of k, all or one split. Its warps take steps of k in turns and
// sum their parts through shared memory at the end; there is nothing to wait for before that. Many
// small CTAs keep the memory busy while some of them sum.
#pragma once

#include "common/activation.h"
#include "common/math.h"
#include "cuda/gemm/gemv/k_major.cuh"
#include "cuda/gemm/gemv/params.h"
#include "cuda/gemm/gemv/wide_major.cuh"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/ld_st.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/convert.cuh"

namespace xgemm::cuda::gemm::gemv {

// Element offsets of a batch.
struct BatchOffset {
  int64_t w = 0, x = 0, d = 0;
  __device__ BatchOffset(const Params& params, uint32_t index) {
#pragma unroll 1  // most launches have no batch: little code to pass by
    for (int i = params.batch_dims - 1; i >= 0; --i) {
      const uint32_t size = params.batch[i].size, at = index % size;
      index /= size;
      w += at * params.batch[i].w, x += at * params.batch[i].x, d += at * params.batch[i].d;
    }
  }
};

// Not inlined, as most launches pass it by.
inline __device__ __noinline__ float activate_out_of_line(Activation activation, float x) {
  return activate(activation, x);
}

// Adds bias, applies the activation, rounds once.
template <typename T>
__device__ inline void store_result(const Params& p, T* d, int narrow, int wide, float y) {
  if (p.bias != nullptr) {
    const T* bias = static_cast<const T*>(p.bias);
    y += static_cast<float>(bias[narrow * p.bias_narrow_stride + wide * p.bias_wide_stride]);
  }
  if (p.activation != Activation::kNone) y = activate_out_of_line(p.activation, y);
  d[narrow * p.d_narrow_stride + wide * p.d_wide_stride] = round_to<T>(y);
}

// Grid: (tiles, splits, batches); kCluster: the splits of a tile are a cluster.
template <typename T, typename Stream, int kThreads, int kCtasPerSm, bool kCluster>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    gemv_kernel(const __grid_constant__ Params params) {
  XGEMM_DYNAMIC_SHARED(float, sums, 16);  // [warps][narrow][kTile]; the CTA's in the first part
  constexpr int kTile = Stream::kTile;
  if constexpr (kCluster) {
    ptx::griddep_launch_dependents();
    ptx::griddep_wait();
  }
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, split = blockIdx.y;
  const uint32_t batch = params.first_batch + blockIdx.z;
  const BatchOffset of_operands(params, batch);
  Stream stream(params, static_cast<const uint16_t*>(params.w) + of_operands.w,
                static_cast<const uint16_t*>(params.x) + of_operands.x, blockIdx.x,
                threadIdx.x % 32);
  const int begin = split * params.k_per_split, end = min(begin + params.k_per_split, params.k);
  int k = begin + warp * Stream::kStepK;
#pragma unroll 1
  for (; k + Stream::kStepK <= end; k += warps * Stream::kStepK) {
    stream.template step<true>(k, end);
  }
  if (k < end) stream.template step<false>(k, end);

  const int outputs = params.narrow * kTile;
  stream.store(sums + warp * outputs);
  __syncthreads();
  // The lanes that share an output of a small tile sum some warps each.
  constexpr int kLanes = kTile <= 16 ? 8 : 1;
  const auto for_sums_of_warps = [&](auto use) {
#pragma unroll 1
    for (int i = threadIdx.x / kLanes; i < round_up(outputs, 32 / kLanes);
         i += blockDim.x / kLanes) {
      float y = 0.0f;
      if (i < outputs) {
#pragma unroll 4
        for (int w = threadIdx.x % kLanes; w < warps; w += kLanes) y += sums[w * outputs + i];
      }
#pragma unroll
      for (int mask = 1; mask < kLanes; mask *= 2) y += __shfl_xor_sync(~0u, y, mask);
      if (threadIdx.x % kLanes == 0 && i < outputs) use(i, y);
    }
  };
  const int wide0 = blockIdx.x * kTile;
  T* d = static_cast<T*>(params.d) + BatchOffset(params, batch).d;
  const auto store = [&](int i, float y) {
    const int wide = wide0 + i % kTile;
    if (wide < params.wide) store_result(params, d, i / kTile, wide, y);
  };
  if constexpr (kCluster) {
    if (params.splits == 1) return for_sums_of_warps(store);
    for_sums_of_warps([&](int i, float y) { sums[i] = y; });
    ptx::cluster_arrive();
    ptx::cluster_wait();
    for (int i = split * blockDim.x + threadIdx.x; i < outputs; i += blockDim.x * params.splits) {
      float y = 0.0f;
      for (int rank = 0; rank < params.splits; ++rank) y += ptx::ld_shared_cluster(sums + i, rank);
      store(i, y);
    }
    ptx::cluster_arrive();  // no CTA leaves while another reads its sums
    ptx::cluster_wait();
  } else {
    if (params.splits == 1) return for_sums_of_warps(store);
    float* to = params.partials + (split * params.batches + batch) * params.narrow * params.wide;
    for_sums_of_warps([&](int i, float y) {
      const int wide = wide0 + i % kTile;
      if (wide < params.wide) to[int64_t{i / kTile} * params.wide + wide] = y;
    });
  }
}

// Sums the splits of k, in their order.
template <typename T>
__global__ void __launch_bounds__(256) sum_splits_kernel(const __grid_constant__ Params params) {
  const int64_t outputs = int64_t{params.narrow} * params.wide, total = params.batches * outputs;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < total;
       i += gridDim.x * int64_t{256}) {
    float y = 0.0f;
    for (int split = 0; split < params.splits; ++split) y += params.partials[split * total + i];
    const int64_t in_batch = i % outputs;
    T* d = static_cast<T*>(params.d) + BatchOffset(params, static_cast<uint32_t>(i / outputs)).d;
    store_result(params, d, static_cast<int>(in_batch / params.wide),
                 static_cast<int>(in_batch % params.wide), y);
  }
}

}  // namespace xgemm::cuda::gemm::gemv
