// A TF32 kernel's configuration for a problem, and an estimate of its time.
#pragma once

#include <optional>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"

namespace xgemm::cuda::gemm::tf32 {

// Nothing where none takes the problem, or none can be faster than the FP32 cores. `listing`, if
// there is one, gets all that were scored.
std::optional<choose::Scored<Choice>> select(const GemmProblem& problem, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::gemm::tf32
