// Host side of the sm_90a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/fp32/params.h"
#include "cuda/gemm/tf32/plan.h"

namespace xgemm::cuda::gemm::tf32::sm90 {

// partials: as fp32::reduce takes them, where config.splits > 1.
Status launch(const GemmProblem& problem, const Config& config, const fp32::Params& partials,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::tf32::sm90
