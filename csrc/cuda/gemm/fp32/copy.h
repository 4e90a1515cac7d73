// Copies of operands that a kernel cannot read as they lie.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/fp32/copy_plan.h"

namespace xgemm::cuda::gemm::fp32 {

inline constexpr int kMaxCopies = 2;

// All of them in one launch. A kernel that waits for it by griddep_wait may be launched so that it
// overlaps.
Status launch_copies(const Copy* copies, int count, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::fp32
