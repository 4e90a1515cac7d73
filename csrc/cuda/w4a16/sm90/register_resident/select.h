#pragma once

#include "common/device.h"
#include "cuda/w4a16/problem.h"
#include "cuda/w4a16/sm90/register_resident/plan.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {

// Pure. True if the kernel takes the problem, which it then does in less time than the one for few
// rows; `config` is for launch.
bool select(const Problem& problem, const DeviceInfo& device, Config* config);

// The plan that `config` stands for.
Plan plan_of(const Config& config);

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
