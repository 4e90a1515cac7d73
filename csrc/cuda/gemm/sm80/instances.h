// The kernels, a translation unit for each type, so that they build side by side.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/sm80/plan.h"

namespace xgemm::cuda::gemm::sm80 {

// The tiles, and the sum of split-K's parts. config: block_m, block_n and ctas. No tile of 256
// columns where an operand is not kWhole16.
Status launch_f16(const Params& params, const Config& config, cudaStream_t stream);
Status launch_bf16(const Params& params, const Config& config, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm80
