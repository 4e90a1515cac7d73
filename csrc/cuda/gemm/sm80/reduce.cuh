// Split-K's second launch.
#pragma once

#include "cuda/gemm/sm80/epilogue.cuh"
#include "cuda/launch.h"
#include "cuda/ptx/griddep.h"
#include "cuda/tile/split_k.cuh"

namespace xgemm::cuda::gemm::sm80 {

inline constexpr int kReduceThreads = 256;

// kOverlap: it may start, and then wait, before earlier work in the stream has ended.
template <typename T, bool kOverlap>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ Params params, int64_t quads) {
  if constexpr (kOverlap) {
    ptx::griddep_launch_dependents();
    ptx::griddep_wait();
  }
  const int64_t part_stride = params.batches * params.m * params.partial_stride;
  for_each_quad<kReduceThreads>(quads, [&](int64_t i) {
    const int64_t quads_of_row = params.partial_stride / 4;
    const int64_t row_of_all = i / quads_of_row, batch = row_of_all / params.m;
    const int64_t column = (i - row_of_all * quads_of_row) * 4, row = row_of_all - batch * params.m;
    float sum[4] = {};
    add_parts_of_quad<4>(sum, params.partials + i * 4, part_stride, params.splits);
    T* d = static_cast<T*>(params.d) +
           batch_offset(params, static_cast<uint32_t>(batch), &BatchDim::d);
    finish_row4<T>(params, d, sum, row, column);
  });
}

template <typename T, bool kOverlap = false>
Status reduce(const Params& params, cudaStream_t stream) {
  const int64_t quads = params.batches * params.m * (params.partial_stride / 4);
  const Grid grid{.blocks = dim3(blocks_of_quads<kReduceThreads>(quads)),
                  .threads = dim3(kReduceThreads),
                  .stream = stream,
                  .overlaps_previous = kOverlap};
  return launch_grid("split-K's sum", grid, reduce_kernel<T, kOverlap>, params, quads);
}

}  // namespace xgemm::cuda::gemm::sm80
