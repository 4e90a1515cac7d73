// The choice of a kernel for a dense product.
#pragma once

#include <optional>
#include <string>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "common/json.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/config.h"

namespace xgemm::cuda::gemm {

// Pure: looks at shapes, strides and alignment, not at memory or the GPU. `listing`, if there is
// one, gets all candidates that were scored.
Config select_config(const GemmProblem& problem, const DeviceInfo& device,
                     choose::Listing<Config>* listing = nullptr);
// The same for whoever launches: each thread keeps its last answers.
Config remembered_config(const GemmProblem& problem, const DeviceInfo& device);
// The sm_90a kernel's choice where it reads A as it lies, though TMA cannot (sm90/shifted.h), after
// a copy of such a B: nothing if it cannot. The estimate is of all that is launched.
std::optional<choose::Scored<Config>> select_shifted(const GemmProblem& problem,
                                                     const DeviceInfo& device,
                                                     choose::Listing<Config>* listing);
// A configuration's fields.
JsonObject to_json(const GemmProblem& problem, const Config& config);
// In words.
std::string explain(const GemmProblem& problem, const Config& config);
// An object: the problem, the choice with its estimate and reason, and all candidates that were
// weighed, by their estimates.
std::string explain_json(const GemmProblem& problem, const DeviceInfo& device, bool candidates);

}  // namespace xgemm::cuda::gemm
