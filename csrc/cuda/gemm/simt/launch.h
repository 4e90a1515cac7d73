// Host side of the general GEMM.
#pragma once

#include "cuda/gemm/api.h"

namespace xgemm::cuda::gemm::simt {

Status launch(const GemmProblem& problem, const Config& config, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::simt
