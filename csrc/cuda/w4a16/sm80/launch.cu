#include <algorithm>

#include "common/math.h"
#include "cuda/launch.h"
#include "cuda/w4a16/sm80/epilogue.cuh"
#include "cuda/w4a16/sm80/instances.h"
#include "cuda/w4a16/sm80/launch.h"
#include "cuda/w4a16/sm80/plan.h"

namespace xgemm::cuda::w4a16::sm80 {
namespace {

constexpr int kReduceThreads = 64;  // few, so that one row's columns still reach many SMs

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

Status reduce(const Params& params, DType dtype, cudaStream_t stream) {
  const int64_t quads = params.m * (params.partial_stride / 4);
  const int64_t blocks = std::min<int64_t>(ceil_div<int64_t>(quads, kReduceThreads), 1 << 16);
  const auto kernel = dtype == DType::kF16 ? reduce_kernel<__half> : reduce_kernel<__nv_bfloat16>;
  const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks)),
                  .threads = dim3(kReduceThreads),
                  .stream = stream};
  return launch_grid("split-K's sum in the sm_80 W4A16 kernel", grid, kernel, params, quads);
}

Status launch_rows(const Params& params, const Config& config, DType dtype, cudaStream_t stream) {
  const auto run = dtype == DType::kF16 ? launch_f16 : launch_bf16;
  const Status status = run(params, config.block_m, config.block_n, stream);
  if (!status.ok() || params.splits == 1) return status;
  return reduce(params, dtype, stream);
}

}  // namespace

Status launch(const Problem& problem, const Config& config, void* workspace, cudaStream_t stream) {
  Params params = make_params(problem);
  const int64_t rows = rows_per_launch(params, config.splits);
  params.stages = config.stages;
  params.splits = config.splits;
  params.partials = static_cast<float*>(workspace);
  if (config.copy_x) {
    const int64_t partials =
        config.splits == 1 ? 0 : 4 * config.splits * rows * params.partial_stride;
    const int64_t stride = copied_row_stride(problem);
    void* copy = static_cast<char*>(workspace) + round_up<int64_t>(partials, 256);
    const Status copied = gather_columns({.rows = problem.m,
                                          .cols = stride,
                                          .src_rows = problem.m,
                                          .src_cols = params.k,
                                          .item_size = 2,
                                          .src = problem.x,
                                          .src_row_stride = problem.x_row_stride,
                                          .src_col_stride = problem.x_col_stride,
                                          .dst = copy,
                                          .dst_row_stride = stride,
                                          .from = problem.perm},
                                         stream);
    if (!copied.ok()) return copied;
    params.x = copy;
    params.x_row_stride = stride;
  }
  for (int64_t row = 0; row < problem.m; row += rows) {
    Params part = params;
    part.m = std::min(rows, problem.m - row);
    part.x = static_cast<const char*>(params.x) + row * params.x_row_stride * 2;
    part.d = static_cast<char*>(params.d) + row * params.d_row_stride * 2;
    const Status status = launch_rows(part, config, problem.dtype, stream);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace xgemm::cuda::w4a16::sm80
