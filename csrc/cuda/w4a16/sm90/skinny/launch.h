#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/w4a16/problem.h"
#include "cuda/w4a16/sm90/skinny/config.h"

namespace xgemm::cuda::w4a16::sm90::skinny {

// For problems that skinny::select takes, with the config it gives.
Status launch(const Problem& problem, const Config& config, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm90::skinny
