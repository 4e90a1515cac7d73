// Host side of the matrix-vector kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/gemv/view.h"

namespace xgemm::cuda::gemm::gemv {

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::gemv
