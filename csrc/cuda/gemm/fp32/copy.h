// Copies of operands that a kernel cannot read as they lie.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/fp32/copy_plan.h"

namespace xgemm::cuda::gemm::fp32 {

Status launch_copy(const Copy& copy, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::fp32
