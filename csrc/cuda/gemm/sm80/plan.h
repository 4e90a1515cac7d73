// From a problem to the kernel's parameters, without CUDA.
#pragma once

#include "cuda/gemm/sm80/params.h"

namespace xgemm::cuda::gemm::sm80 {

// Parts of K are multiples of the k that any tile has.
inline constexpr int kBlockK = 64;

struct Config {
  int block_m, block_n, stages;
  int splits;  // of K
  int ctas;    // of the grid, at most
};

// All but splits, partials and tiles, which depend on the Config.
Params make_params(const GemmProblem& problem);

}  // namespace xgemm::cuda::gemm::sm80
