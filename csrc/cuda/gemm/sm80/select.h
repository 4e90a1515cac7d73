// Which sm_80 kernel a dense problem gets.
#pragma once

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/gemm/config.h"

namespace xgemm::cuda::gemm::sm80 {

// Takes every fp16 and bf16 problem with alpha 1 and beta 0, on every GPU from Ampere on.
// `estimate_us` is about the time it takes on an H200.
Config select(const GemmProblem& problem, const DeviceInfo& device, double* estimate_us);

}  // namespace xgemm::cuda::gemm::sm80
