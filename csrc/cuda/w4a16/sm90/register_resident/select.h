#pragma once

#include <optional>

#include "common/device.h"
#include "cuda/choose/engine.h"
#include "cuda/w4a16/choice.h"
#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {

// Pure. Nothing where the kernel does not take the problem. `listing`, if there is one, gets its
// candidate.
std::optional<choose::Scored<Choice>> select(const Problem& problem, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
