#pragma once

#include "cuda/gemm/api.h"

namespace xgemm::cuda::gemm::gemv {

// For problems that gemv::select takes, with the config it gives.
Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::gemv
