// Which tile of the sm_90a kernel a problem gets.
#pragma once

#include <optional>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"

namespace xgemm::cuda::gemm::sm90::persistent {

// Pure, for a problem that TMA can read. `listing`, if there is one, gets all that were scored.
std::optional<choose::Scored<Choice>> select(const GemmProblem& problem, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);

// The same for one of which A is read shifted (shifted.h).
std::optional<choose::Scored<Choice>> select_shifted(const GemmProblem& problem,
                                                     const DeviceInfo& device,
                                                     choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::gemm::sm90::persistent
