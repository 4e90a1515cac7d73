#include "cuda/gemm/simt/launch.h"

#include "cuda/gemm/api.h"
#include "cuda/gemm/sm90/launch.h"

namespace xgemm::cuda::gemm {

Status launch(const Problem& problem, cudaStream_t stream) {
  if (problem.m == 0 || problem.n == 0) return {};
  for (int i = 0; i < problem.batch_dims; ++i) {
    if (problem.batch[i].size == 0) return {};
  }
  const Config config = select_config(problem, current_device());
  if (config.kernel == Kernel::kSm90) return sm90::launch(problem, config, stream);
  return simt::launch(problem, config, stream);
}

}  // namespace xgemm::cuda::gemm
