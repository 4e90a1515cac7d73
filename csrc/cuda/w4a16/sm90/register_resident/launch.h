#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/w4a16/problem.h"
#include "cuda/w4a16/sm90/register_resident/plan.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {

// For problems that register_resident::select takes, with the plan it gives.
Status launch(const Problem& problem, const Plan& plan, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
