// Copies fp32 operands.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/align/plan.h"

namespace xgemm::cuda::gemm::fp32 {

// All of them in one launch. A kernel that waits for it by griddep_wait may be launched so that it
// overlaps.
Status copy(const align::AlignedCopy* copies, int count, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::fp32
