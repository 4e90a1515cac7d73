// Host side of the skinny sm_90a GEMM.
#pragma once

#include <cuda_runtime_api.h>

#include "common/gemm_problem.h"
#include "common/status.h"
#include "cuda/gemm/config.h"

namespace xgemm::cuda::gemm::sm90::skinny {

// Launches the kernel of `config`, which is select's for this problem.
Status launch(const GemmProblem& problem, const Config& config, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90::skinny
