// Which tile the single-tile kernel takes.
#pragma once

#include <optional>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

// Pure. Nothing where the kernel does not take the problem, which TMA can read. `listing`, if there
// is one, gets all that were scored.
std::optional<choose::Scored<Choice>> select(const GemmProblem& problem, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::gemm::sm90::single_tile
