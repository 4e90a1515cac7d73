#include "cuda/gemm/tf32/launch.h"

#include "common/math.h"
#include "cuda/gemm/fp32/launch.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/tf32/copy.h"
#include "cuda/gemm/tf32/sm80/launch.h"
#include "cuda/gemm/tf32/sm90/launch.h"

namespace xgemm::cuda::gemm::tf32 {

namespace {

Status launch_sm80(const Problem& problem, const Config& config, void* workspace,
                   cudaStream_t stream) {
  fp32::Params params = fp32::make_params(problem);
  params.splits = config.splits;
  params.k_per_split = round_up<int64_t>(ceil_div<int64_t>(params.k, config.splits), fp32::kBlockK);
  params.partials = static_cast<float*>(workspace);
  const Status status = sm80::launch(params, problem.precision, stream);
  if (!status.ok() || config.splits == 1) return status;
  return fp32::reduce(params, stream);
}

}  // namespace

Status launch(const Problem& problem, const Config& config, void* workspace, cudaStream_t stream) {
  if (config.block_m == config.block_n) return launch_sm80(problem, config, workspace, stream);
  const TileShape tile = tile_shape(problem.precision);
  const bool swapped = config.block_m != tile.x;
  const int64_t batches = problem.batch_dims > 0 ? problem.batch[0].size : 1;
  char* free = static_cast<char*>(workspace);
  const auto copied = [&](Matrix* matrix) {
    float* dst = reinterpret_cast<float*>(free);
    free += copy_bytes(problem, *matrix);
    const bool batched = matrix->batch_stride != 0;
    const Status status = copy_along_k(*matrix, problem.k, batched ? batches : 1, dst, stream);
    const int64_t stride = copy_stride(problem.k);
    *matrix = {dst, matrix->rows, stride, 1, batched ? matrix->rows * stride : 0};
    return status;
  };
  Matrix a = a_of(problem), b = b_of(problem);
  if (config.copy_a) {
    if (const Status status = copied(&a); !status.ok()) return status;
  }
  if (config.copy_b) {
    if (const Status status = copied(&b); !status.ok()) return status;
  }
  fp32::Params partials = fp32::make_params(problem);
  partials.splits = config.splits;
  partials.partials = reinterpret_cast<float*>(free);
  const Status status =
      sm90::launch(problem, config, swapped ? b : a, swapped ? a : b, swapped, partials, stream);
  if (!status.ok() || config.splits == 1) return status;
  return fp32::reduce(partials, stream);
}

}  // namespace xgemm::cuda::gemm::tf32
