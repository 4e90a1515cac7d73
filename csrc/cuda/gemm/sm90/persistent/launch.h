// Host side of the sm_90a GEMM.
#pragma once

#include <cuda_runtime_api.h>

#include "common/gemm_problem.h"
#include "common/status.h"
#include "cuda/gemm/sm90/persistent/tiles.h"

namespace xgemm::cuda::gemm::sm90::persistent {

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90::persistent
