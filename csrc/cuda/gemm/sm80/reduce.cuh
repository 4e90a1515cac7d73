// Split-K's second launch.
#pragma once

#include "common/math.h"
#include "cuda/gemm/sm80/epilogue.cuh"
#include "cuda/launch.h"

namespace xgemm::cuda::gemm::sm80 {

inline constexpr int kReduceThreads = 256;

// Sums split-K's parts in their order: the same bits in every run.
template <typename T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ Params params, int64_t quads) {
  const int64_t part_stride = params.batches * params.m * params.partial_stride;
  for (int64_t i = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x; i < quads;
       i += int64_t{gridDim.x} * kReduceThreads) {
    const int64_t quads_of_row = params.partial_stride / 4;
    const int64_t row_of_all = i / quads_of_row, batch = row_of_all / params.m;
    const int64_t column = (i - row_of_all * quads_of_row) * 4, row = row_of_all - batch * params.m;
    const float* source = params.partials + i * 4;
    float sum[4] = {};
#pragma unroll 4
    for (int split = 0; split < params.splits; ++split) {
      const float4 part = *reinterpret_cast<const float4*>(source + split * part_stride);
      sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
    }
    T* d = static_cast<T*>(params.d) +
           batch_offset(params, static_cast<uint32_t>(batch), &BatchDim::d);
    finish_row4<T>(params, d, sum, row, column);
  }
}

template <typename T>
Status reduce(const Params& params, cudaStream_t stream) {
  const int64_t quads = params.batches * params.m * (params.partial_stride / 4);
  const int64_t blocks = min(ceil_div<int64_t>(quads, kReduceThreads), int64_t{1} << 16);
  const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks)),
                  .threads = dim3(kReduceThreads),
                  .stream = stream};
  return launch_grid("split-K's sum in the sm_80 GEMM", grid, reduce_kernel<T>, params, quads);
}

}  // namespace xgemm::cuda::gemm::sm80
