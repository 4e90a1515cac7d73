#include "cuda/w4a16/sm80/launch.h"

#include <algorithm>

#include "cuda/w4a16/api.h"
#include "cuda/w4a16/sm80/instances.h"
#include "cuda/w4a16/sm80/plan.h"

namespace xgemm::cuda::w4a16::sm80 {

Status launch(const Problem& problem, const Config& config, void* workspace, cudaStream_t stream) {
  Params params = make_params(problem);
  const int64_t rows = config.rows_per_launch;
  params.stages = config.stages;
  params.splits = config.splits;
  params.partials = static_cast<float*>(workspace);
  if (config.copy_x) {
    const int64_t stride = copied_row_stride(problem);
    void* copy = static_cast<char*>(workspace) + config.partials_bytes;
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
  const auto run = problem.dtype == DType::kF16 ? launch_f16 : launch_bf16;
  for (int64_t row = 0; row < problem.m; row += rows) {
    Params part = params;
    part.m = std::min(rows, problem.m - row);
    part.x = static_cast<const char*>(params.x) + row * params.x_row_stride * 2;
    part.d = static_cast<char*>(params.d) + row * params.d_row_stride * 2;
    const Status status = run(part, config.block_m, config.block_n, stream);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace xgemm::cuda::w4a16::sm80
