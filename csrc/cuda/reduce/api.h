// Reductions on CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/reduce/problem.h"

namespace xgemm::cuda::reduce {

// On the current device, which holds input and output. `config` is select_config's for this
// problem; `workspace` has config.workspace_bytes bytes, aligned to 256, with any contents. The
// bits of the result depend on the problem and the config alone.
Status launch(const ReduceProblem& problem, const Plan& plan, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::reduce
