// Host side of the sm_80 GEMM.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/sm80/plan.h"

namespace xgemm::cuda::gemm::sm80 {

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm80
