// Which tile a W4A16 product gets.
#pragma once

#include "common/device.h"
#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// False where the kernel does not take the problem; else the best configuration, and how long it is
// expected to take.
bool select(const Problem& p, const DeviceInfo& device, Config* config, double* estimate_us);

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
