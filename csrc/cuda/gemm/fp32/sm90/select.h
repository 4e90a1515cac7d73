// The choice among the tiles that TMA feeds.
#pragma once

#include <optional>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"
#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

// Nothing where the kernels do not take the problem, whose parameters are `params`. `listing`, if
// there is one, gets all that were scored.
std::optional<choose::Scored<Choice>> select(const GemmProblem& problem, const Params& params,
                                             const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::gemm::fp32::sm90
