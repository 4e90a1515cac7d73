#include "cuda/gemm/gemv/launch.h"

#include "common/current_device.h"
#include "common/math.h"
#include "cuda/gemm/gemv/instances.h"
#include "cuda/gemm/gemv/view.h"

namespace xgemm::cuda::gemm::gemv {

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream) {
  const std::optional<View> view = view_of(problem, config.swapped);
  if (!view) return {cudaErrorInvalidValue, "the matrix-vector kernel's choice"};
  const Shape& shape = *config.shape;
  Params params = view->params;
  params.splits = config.splits;
  const Cut cut = cut_of(shape, params.k, config.splits);
  params.k_per_split = cut.k_per_split;
  params.partials = config.cluster > 1 ? nullptr : static_cast<float*>(workspace);
  const Grid grid = {
      .tiles = static_cast<unsigned>(ceil_div(params.wide, shape.tile)),
      .warps = cut.warps,
      .cluster = config.cluster,
  };
  const bool f16 = problem.dtype == DType::kF16;
  // Hopper's own build of the kernels has clusters, and spares a compilation at the first call.
  const bool sm90 = current_device().capability == 90 && (config.splits == 1 || config.cluster > 1);
  const auto run = sm90 ? (f16 ? sm90_f16 : sm90_bf16) : (f16 ? portable_f16 : portable_bf16);
  for (; params.first_batch < params.batches; params.first_batch += kMaxBatches) {
    const Status status = run(params, shape, view->aligned, grid, stream);
    if (!status.ok()) return status;
  }
  if (params.splits == 1 || config.cluster > 1) return {};
  return (f16 ? sum_splits_f16 : sum_splits_bf16)(params, stream);
}

}  // namespace xgemm::cuda::gemm::gemv
