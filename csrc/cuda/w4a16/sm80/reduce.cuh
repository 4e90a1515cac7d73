// Split-K's second launch.
#pragma once

#include "common/math.h"
#include "cuda/launch.h"
#include "cuda/w4a16/sm80/epilogue.cuh"

namespace xgemm::cuda::w4a16::sm80 {

inline constexpr int kReduceThreads = 64;  // few, so that one row's columns still reach many SMs

// Sums split-K's parts in their order: the same bits in every run.
template <typename T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ Params params, int64_t quads) {
  const int64_t part_stride = params.m * params.partial_stride;
  for (int64_t i = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x; i < quads;
       i += int64_t{gridDim.x} * kReduceThreads) {
    const int64_t quads_of_row = params.partial_stride / 4;
    const int64_t row = i / quads_of_row, column = i % quads_of_row * 4;
    const float* source = params.partials + i * 4;
    float sum[4] = {};
#pragma unroll 8
    for (int split = 0; split < params.splits; ++split) {
      const float4 part = *reinterpret_cast<const float4*>(source + split * part_stride);
      sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
    }
    finish_row4<T>(params, sum, row, column);
  }
}

template <typename T>
Status reduce(const Params& params, cudaStream_t stream) {
  const int64_t quads = params.m * (params.partial_stride / 4);
  const int64_t blocks = min(ceil_div<int64_t>(quads, kReduceThreads), int64_t{1} << 16);
  const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks)),
                  .threads = dim3(kReduceThreads),
                  .stream = stream};
  return launch_grid("split-K's sum in the sm_80 W4A16 kernel", grid, reduce_kernel<T>, params,
                     quads);
}

}  // namespace xgemm::cuda::w4a16::sm80
