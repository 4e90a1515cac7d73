// A copy of an operand along k, for what TMA cannot read.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/tf32/plan.h"

namespace xgemm::cuda::gemm::tf32 {

// dst: [batches][rows][copy_stride(k)]; what pads a row is not written, and never read.
Status copy_along_k(const Matrix& from, int64_t k, int64_t batches, float* dst,
                    cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::tf32
