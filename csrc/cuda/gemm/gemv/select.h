// Which matrix-vector kernel a dense problem gets.
#pragma once

#include <optional>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"

namespace xgemm::cuda::gemm::gemv {

// Pure. A rule gives a problem its tile and splits: one candidate, or nothing where the kernels do
// not take the problem. `listing`, if there is one, gets it.
std::optional<choose::Scored<Choice>> select(const GemmProblem& problem, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::gemm::gemv
