#include "cuda/gemm/tf32/launch.h"

#include "cuda/gemm/fp32/launch.h"
#include "cuda/gemm/tf32/sm80/launch.h"
#include "cuda/gemm/tf32/sm90/launch.h"

namespace xgemm::cuda::gemm::tf32 {

Status sm80::launch(const GemmProblem& problem, const Config& config, void* workspace,
                    cudaStream_t stream) {
  fp32::Params params = fp32::make_params(problem);
  fp32::set_splits(&params, config.splits, workspace);
  const Status status = sm80::launch(params, problem.precision, stream);
  if (!status.ok() || config.splits == 1) return status;
  return fp32::reduce(params, stream);
}

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream) {
  fp32::Params partials = fp32::make_params(problem);
  partials.splits = config.splits;
  partials.partials = static_cast<float*>(workspace);
  const Status status = sm90::launch(problem, config, partials, stream);
  if (!status.ok() || config.splits == 1) return status;
  return fp32::reduce(partials, stream);
}

}  // namespace xgemm::cuda::gemm::tf32
