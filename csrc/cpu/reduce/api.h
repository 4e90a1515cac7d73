// Reductions on the CPU.
#pragma once

#include <string>

#include "common/parallel.h"
#include "common/reduction.h"

namespace xgemm::cpu {

// The bits of the result do not depend on the number of threads.
void reduce(const ReduceProblem& problem, const Parallel& parallel);

// How a reduction is cut up: in words, or as a JSON object.
std::string explain_reduce(const ReduceProblem& problem, bool json);

}  // namespace xgemm::cpu
