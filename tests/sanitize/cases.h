// Random calls of the CPU kernels, compared with what plain loops make of them.
#pragma once

#include "common/parallel.h"
#include "sanitize/memory.h"

namespace xgemm::sanitize {

// A case draws a problem, says on stdout what it is (the last line is the case that failed), runs
// it, and compares.
void product_case(Rng& rng, const Parallel& parallel);
void w4_case(Rng& rng, const Parallel& parallel);
void reduction_case(Rng& rng, const Parallel& parallel);

// Makes the named mistake; false where there is none of that name (mistakes.cpp).
bool make_mistake(const char* name);

}  // namespace xgemm::sanitize
