#pragma once

#include <optional>

#include "common/device.h"
#include "cuda/choose/engine.h"
#include "cuda/w4a16/choice.h"
#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16::sm80 {

// Pure. Takes every problem with 16-bit activations that is not empty in m and n. `listing`, if
// there is one, gets all tiles that were scored.
std::optional<choose::Scored<Choice>> select(const Problem& problem, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::w4a16::sm80
