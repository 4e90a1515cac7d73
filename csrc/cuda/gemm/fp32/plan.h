// From a problem to the fp32 kernels' parameters, without CUDA.
#pragma once

#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::fp32 {

// How many columns of k a tile has, of every kernel.
inline constexpr int kBlockK = 16;

// All but what depends on the Config: splits, partials, tiles.
Params make_params(const Problem& problem);

}  // namespace xgemm::cuda::gemm::fp32
