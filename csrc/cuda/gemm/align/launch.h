// Copies operands of 16-bit types.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/align/plan.h"

namespace xgemm::cuda::gemm::align {

// Makes `count` copies in one launch. Extents are below 2^31.
Status copy(const AlignedCopy* copies, int count, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::align
