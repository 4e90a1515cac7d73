// A TF32 kernel's configuration for a problem, and an estimate of its time.
#pragma once

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/gemm/config.h"

namespace xgemm::cuda::gemm::tf32 {

// False where none takes the problem, or none can be faster than the FP32 cores.
bool select(const GemmProblem& problem, const DeviceInfo& device, Config* config,
            double* estimate_us);

}  // namespace xgemm::cuda::gemm::tf32
