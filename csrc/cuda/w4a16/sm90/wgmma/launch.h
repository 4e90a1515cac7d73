// Host side of the sm_90a W4A16 product by wgmma.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/w4a16/problem.h"
#include "cuda/w4a16/sm90/wgmma/config.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// Launches the kernel of `config`; the problem fits it (select has seen to that).
Status launch(const Problem& problem, const Config& config, void* workspace, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
