// Host side of the sm_90a kernel for small products.
#pragma once

#include "cuda/gemm/api.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

Status launch(const GemmProblem& problem, const Config& config, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90::single_tile
