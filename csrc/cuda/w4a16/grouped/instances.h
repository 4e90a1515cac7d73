// The compiled kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/w4a16/grouped/params.h"

namespace xgemm::cuda::w4a16::grouped {

Status launch_f16(const Params& params, const Instance& instance, cudaStream_t stream);
Status launch_bf16(const Params& params, const Instance& instance, cudaStream_t stream);
// Tiles of 8 rows by 64 columns of y.
Status launch_f32(const Params& params, const w4::Layout& layout, int64_t tiles,
                  cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::grouped
