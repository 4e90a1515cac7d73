// From a problem to the fp32 kernels' parameters, without CUDA.
#pragma once

#include "cuda/gemm/fp32/copy_plan.h"
#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::fp32 {

// How many columns of k a tile has, of every kernel.
inline constexpr int kBlockK = 16;

// The rows that the kernels for few of them take.
inline constexpr int kMostFew = 4;

// All but what depends on the Config: splits, partials, tiles.
Params make_params(const Problem& problem);
// With D's shorter side as rows, for the kernels that take few of them.
Params make_few_params(const Problem& problem);
// A copy of A (or B) along its rows (columns), as the large tile wants it, to `dst`, a multiple of
// 16; the problem reads the copy from then on. At most one batch dimension.
Copy plan_copy(Problem* problem, bool of_a, void* dst);
void set_splits(Params* params, int splits, void* workspace);

}  // namespace xgemm::cuda::gemm::fp32
