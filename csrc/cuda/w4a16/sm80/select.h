#pragma once

#include "common/device.h"
#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16::sm80 {

// Takes every problem with 16-bit activations that is not empty in m and n.
Config select(const Problem& problem, const DeviceInfo& device, double* estimate_us);

}  // namespace xgemm::cuda::w4a16::sm80
