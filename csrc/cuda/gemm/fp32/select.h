// Which tile of the fp32 kernels a problem gets, and an estimate of its time.
#pragma once

#include "common/device.h"
#include "cuda/gemm/problem.h"

namespace xgemm::cuda::gemm::fp32 {

Config select(const Problem& problem, const DeviceInfo& device, double* estimate_us);

}  // namespace xgemm::cuda::gemm::fp32
