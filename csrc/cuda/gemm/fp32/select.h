// Which tile of the fp32 kernels a problem gets, and an estimate of its time.
#pragma once

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/gemm/config.h"

namespace xgemm::cuda::gemm::fp32 {

Config select(const GemmProblem& problem, const DeviceInfo& device, double* estimate_us);

}  // namespace xgemm::cuda::gemm::fp32
