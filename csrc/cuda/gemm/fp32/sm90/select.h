// The choice among the tiles that TMA feeds.
#pragma once

#include "common/device.h"
#include "cuda/gemm/config.h"
#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

// False where the kernels do not take the problem, whose parameters are `params`.
bool select(const GemmProblem& problem, const Params& params, const DeviceInfo& device,
            Config* config, double* estimate_us);

}  // namespace xgemm::cuda::gemm::fp32::sm90
