// Host side of the TF32 kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/tf32/plan.h"

namespace xgemm::cuda::gemm::tf32 {

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);
namespace sm80 {
Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);
}

}  // namespace xgemm::cuda::gemm::tf32
