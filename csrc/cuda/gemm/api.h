// Dense matrix products on CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "common/gemm_problem.h"
#include "common/status.h"
#include "cuda/gemm/choice.h"

namespace xgemm::cuda::gemm {

// On the current device, which holds all operands. `choice` is select_config's for this problem;
// `workspace` has choice.workspace_bytes bytes, aligned to 256, with any contents.
Status launch(const GemmProblem& problem, const Choice& choice, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm
