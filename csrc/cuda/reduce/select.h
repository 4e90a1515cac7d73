// The plan of a reduction, and the choice of its kernel.
#pragma once

#include <string>

#include "common/device.h"
#include "common/json.h"
#include "cuda/choose/engine.h"
#include "cuda/reduce/problem.h"

namespace xgemm::cuda::reduce {

// Pure: these look at shapes, strides and alignment, not at memory or the GPU.
Plan make_plan(const ReduceProblem& problem);
// Of a configuration with groups: its columns as outputs, reduced over the outer dimension alone.
Plan columns_of_groups(const Plan& plan);
// `listing`, if there is one, gets all candidates.
Config select_config(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device,
                     choose::Listing<Config>* listing = nullptr);
// What tells configurations of one problem apart.
JsonObject fields_of(const Config& config);
// In words.
std::string explain(const Plan& plan, const Config& config);
// An object: the problem, the choice with its reason, and the candidates, by their estimates. A
// copy has none.
std::string explain_json(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device,
                         bool candidates);

}  // namespace xgemm::cuda::reduce
