#pragma once

#include "common/device.h"
#include "cuda/w4a16/problem.h"
#include "cuda/w4a16/sm90/skinny/split.h"

namespace xgemm::cuda::w4a16::sm90::skinny {

// Pure. True if the kernel takes the problem; then `config` is for launch, and `estimate_us` about
// the time it takes.
bool select(const Problem& problem, const DeviceInfo& device, Config* config, double* estimate_us);

// The split that `config` stands for.
Split split_of(const Problem& problem, const Config& config);

}  // namespace xgemm::cuda::w4a16::sm90::skinny
