// Reductions on the CPU.
#pragma once

#include "common/parallel.h"
#include "common/reduction.h"

namespace xgemm::cpu {

// The bits of the result do not depend on the number of threads.
void reduce(const ReduceProblem& problem, const Parallel& parallel);

}  // namespace xgemm::cpu
