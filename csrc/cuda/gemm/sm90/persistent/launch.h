// Host side of the sm_90a GEMM.
#pragma once

#include "cuda/gemm/api.h"

namespace xgemm::cuda::gemm::sm90::persistent {

// Launches the kernel of `config`; the problem fits it (select_config has seen to that).
Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90::persistent
