// Host side of the sm_80 W4A16 kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/w4a16/problem.h"
#include "cuda/w4a16/sm80/config.h"

namespace xgemm::cuda::w4a16::sm80 {

// `config` is sm80::select's for this problem, which is not empty in m and n.
Status launch(const Problem& problem, const Config& config, void* workspace, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm80
