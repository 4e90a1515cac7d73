// A TF32 kernel's configuration for a problem, and an estimate of its time.
#pragma once

#include "common/device.h"
#include "cuda/gemm/problem.h"

namespace xgemm::cuda::gemm::tf32 {

// False where none takes the problem, or none can be faster than the FP32 cores.
bool select(const Problem& problem, const DeviceInfo& device, Config* config, double* estimate_us);

}  // namespace xgemm::cuda::gemm::tf32
