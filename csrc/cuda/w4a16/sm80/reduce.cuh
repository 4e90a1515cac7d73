// Split-K's second launch.
#pragma once

#include "cuda/launch.h"
#include "cuda/tile/split_k.cuh"
#include "cuda/w4a16/sm80/epilogue.cuh"

namespace xgemm::cuda::w4a16::sm80 {

inline constexpr int kReduceThreads = 64;  // few, so that one row's columns still reach many SMs

template <typename T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ Params params, int64_t quads) {
  const int64_t part_stride = params.m * params.partial_stride;
  for_each_quad<kReduceThreads>(quads, [&](int64_t i) {
    const int64_t quads_of_row = params.partial_stride / 4;
    const int64_t row = i / quads_of_row, column = i % quads_of_row * 4;
    float sum[4] = {};
    add_parts_of_quad<8>(sum, params.partials + i * 4, part_stride, params.splits);
    finish_row4<T>(params, sum, row, column);
  });
}

template <typename T>
Status reduce(const Params& params, cudaStream_t stream) {
  const int64_t quads = params.m * (params.partial_stride / 4);
  const Grid grid{.blocks = dim3(blocks_of_quads<kReduceThreads>(quads)),
                  .threads = dim3(kReduceThreads),
                  .stream = stream};
  return launch_grid("split-K's sum in the sm_80 W4A16 kernel", grid, reduce_kernel<T>, params,
                     quads);
}

}  // namespace xgemm::cuda::w4a16::sm80
