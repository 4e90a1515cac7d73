// The copy of what a shifted A's rows begin with.
#pragma once

#include <cuda_runtime_api.h>

#include "common/gemm_problem.h"
#include "common/status.h"

namespace xgemm::cuda::gemm::sm90::persistent {

// heads: [residues][rows of a residue][kBlockK], shifted (shifted.h).
Status copy_heads(const GemmProblem& problem, uint16_t* heads, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90::persistent
