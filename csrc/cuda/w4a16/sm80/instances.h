// The kernels, a translation unit for each type, so that they build side by side.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/w4a16/sm80/params.h"

namespace xgemm::cuda::w4a16::sm80 {

// A tile of tile.h by its size; what depends on it in `params` is filled in.
Status launch_f16(const Params& params, int block_m, int block_n, cudaStream_t stream);
Status launch_bf16(const Params& params, int block_m, int block_n, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm80
