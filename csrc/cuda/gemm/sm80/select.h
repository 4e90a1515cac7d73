// Which sm_80 kernel a dense problem gets.
#pragma once

#include <optional>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"

namespace xgemm::cuda::gemm::sm80 {

// Pure. Takes every fp16 and bf16 problem with alpha 1 and beta 0, on every GPU from Ampere on.
// `listing`, if there is one, gets all that were scored.
std::optional<choose::Scored<Choice>> select(const GemmProblem& problem, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::gemm::sm80
