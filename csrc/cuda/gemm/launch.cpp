#include "cuda/gemm/simt/launch.h"

#include "cuda/gemm/api.h"
#include "cuda/gemm/sm90/launch.h"

namespace xgemm::cuda::gemm {

Status launch(const Problem& problem, const Config& config, void* workspace, cudaStream_t stream) {
  (void)workspace;
  if (problem.m == 0 || problem.n == 0) return {};
  for (int i = 0; i < problem.batch_dims; ++i) {
    if (problem.batch[i].size == 0) return {};
  }
  if (config.kernel == Kernel::kSm90) return sm90::launch(problem, config, stream);
  return simt::launch(problem, config, stream);
}

}  // namespace xgemm::cuda::gemm
