// Which tile, how many parts of K and which ring the skinny kernel takes.
#pragma once

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/gemm/config.h"

namespace xgemm::cuda::gemm::sm90::skinny {

// Pure. True if the kernel takes the problem, which TMA can read; then `config` is for launch, and
// `estimate_us` about the time it takes on an H200. In `config` block_m counts rows of the wide
// operand, block_n of the narrow one.
bool select(const GemmProblem& problem, const DeviceInfo& device, Config* config,
            double* estimate_us);

}  // namespace xgemm::cuda::gemm::sm90::skinny
