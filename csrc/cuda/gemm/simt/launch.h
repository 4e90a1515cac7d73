// Host side of the general GEMM.
#pragma once

#include <cuda_runtime_api.h>

#include "common/gemm_problem.h"
#include "common/status.h"
#include "cuda/gemm/simt/config.h"

namespace xgemm::cuda::gemm::simt {

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::simt
