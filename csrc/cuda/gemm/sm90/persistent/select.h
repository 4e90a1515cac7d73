// Which tile of the sm_90a kernel a problem gets.
#pragma once

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/gemm/config.h"

namespace xgemm::cuda::gemm::sm90::persistent {

// For a problem that TMA can read. `estimate_us` is about the time it takes on an H200.
Config select(const GemmProblem& problem, const DeviceInfo& device, double* estimate_us);

// The same for one of which A is read shifted (shifted.h).
Config select_shifted(const GemmProblem& problem, const DeviceInfo& device, double* estimate_us);

}  // namespace xgemm::cuda::gemm::sm90::persistent
