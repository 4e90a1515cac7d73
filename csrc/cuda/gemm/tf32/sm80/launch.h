// Host side of the mma.sync kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::tf32::sm80 {

// All of params but the tiles; split-K's sums stay in params.partials.
Status launch(fp32::Params params, Precision precision, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::tf32::sm80
