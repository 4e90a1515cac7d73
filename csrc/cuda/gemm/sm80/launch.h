// Host side of the sm_80 GEMM.
#pragma once

#include "cuda/gemm/api.h"

namespace xgemm::cuda::gemm::sm80 {

// `config` is sm80::select's for this problem, which is not empty in m, n and batch.
Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm80
