// Host side of the fp32 kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/fp32/plan.h"

namespace xgemm::cuda::gemm::fp32 {

// D from split-K's partial sums.
Status reduce(const Params& params, cudaStream_t stream);

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::fp32
