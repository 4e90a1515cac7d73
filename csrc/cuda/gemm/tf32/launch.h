// Host side of the TF32 kernels.
#pragma once

#include "cuda/gemm/api.h"

namespace xgemm::cuda::gemm::tf32 {

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);
Status launch_sm80(const GemmProblem& problem, const Config& config, void* workspace,
                   cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::tf32
