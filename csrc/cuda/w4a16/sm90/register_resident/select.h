#pragma once

#include <optional>

#include "common/device.h"
#include "cuda/w4a16/choice.h"
#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {

// Pure. Nothing where the kernel does not take the problem, or is slower than the stream for few
// rows: a rule says so, without an estimate.
std::optional<Choice> select(const Problem& problem, const DeviceInfo& device);

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
