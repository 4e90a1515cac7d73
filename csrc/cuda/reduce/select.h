// The plan of a reduction, and the choice of its kernel.
#pragma once

#include <string>

#include "common/device.h"
#include "cuda/choose/engine.h"
#include "cuda/reduce/problem.h"

namespace xgemm::cuda::reduce {

// Pure: these look at shapes, strides and alignment, not at memory or the GPU.
Plan make_plan(const ReduceProblem& problem);
// Of a configuration with groups: its columns as outputs, reduced over the outer dimension alone.
Plan columns_of_groups(const Plan& plan);
// `listing`, if there is one, gets all ways to cut the problem that were scored.
Config select_config(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device,
                     choose::Listing<Config>* listing = nullptr);
// In words.
std::string explain(const Plan& plan, const Config& config);
// An object: the problem, the choice with its reason, and the candidates whose costs were
// estimated, by these. Kernels that a rule gives a problem have no estimate.
std::string explain_json(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device,
                         bool candidates);

}  // namespace xgemm::cuda::reduce
