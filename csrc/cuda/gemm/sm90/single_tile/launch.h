// Host side of the sm_90a kernel for small products.
#pragma once

#include <cuda_runtime_api.h>

#include "common/gemm_problem.h"
#include "common/status.h"
#include "cuda/gemm/sm90/single_tile/tile.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90::single_tile
