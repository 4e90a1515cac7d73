// Which tile, how many parts of K and which pipeline the skinny kernel takes.
#pragma once

#include <optional>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"

namespace xgemm::cuda::gemm::sm90::skinny {

// Pure. Nothing where the kernel does not take the problem, which TMA can read. In the config
// block_m counts rows of the wide operand, block_n of the narrow one. `listing`, if there is one,
// gets all that were scored.
std::optional<choose::Scored<Choice>> select(const GemmProblem& problem, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::gemm::sm90::skinny
