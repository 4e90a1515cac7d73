#pragma once

#include "cuda/w4a16/api.h"

namespace xgemm::cuda::w4a16::sm90::skinny {

// For problems that skinny::select takes, with the config it gives.
Status launch(const Problem& problem, const Config& config, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm90::skinny
