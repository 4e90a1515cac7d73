// The compiled kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/w4a16/sm80/params.h"

namespace xgemm::cuda::w4a16::sm80 {

// The tiles of a size, and the sum of split-K's parts; what depends on the size in `params` is
// filled in.
Status launch_f16(const Params& params, int block_m, int block_n, cudaStream_t stream);
Status launch_bf16(const Params& params, int block_m, int block_n, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm80
