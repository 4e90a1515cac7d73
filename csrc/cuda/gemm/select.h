// The choice of a kernel for a dense product.
#pragma once

#include <string>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/gemm/config.h"

namespace xgemm::cuda::gemm {

// Pure: looks at shapes, strides and alignment, not at memory or the GPU.
Config select_config(const GemmProblem& problem, const DeviceInfo& device);
// The same for whoever launches: each thread keeps its last answers.
Config remembered_config(const GemmProblem& problem, const DeviceInfo& device);
// The sm_90a kernel's configuration where it reads A as it lies, though TMA cannot
// (sm90/shifted.h), after a copy of such a B: false if it cannot. The estimate is of all that is
// launched.
bool select_shifted(const GemmProblem& problem, const DeviceInfo& device, Config* config,
                    double* us);
// In words.
std::string explain(const GemmProblem& problem, const Config& config);
// An object: the problem, the choice with its estimate and reason, and all candidates that were
// weighed, by their estimates.
std::string explain_json(const GemmProblem& problem, const DeviceInfo& device, bool candidates);

}  // namespace xgemm::cuda::gemm
