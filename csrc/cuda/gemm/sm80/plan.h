// From a problem to the kernel's parameters, without CUDA.
#pragma once

#include "cuda/gemm/sm80/params.h"

namespace xgemm::cuda::gemm::sm80 {

// How many columns of k a tile has, of every kernel.
inline constexpr int kBlockK = 32;

// All but splits, partials and tiles, which depend on the Config.
Params make_params(const Problem& problem);

}  // namespace xgemm::cuda::gemm::sm80
