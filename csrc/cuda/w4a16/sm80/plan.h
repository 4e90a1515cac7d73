// From a problem to the sm_80 kernel's parameters, without CUDA.
#pragma once

#include "cuda/w4a16/sm80/params.h"

namespace xgemm::cuda::w4a16::sm80 {

// Whether cp.async can read x as it lies; else it is copied first, into rows of copied_row_stride.
bool x_fits(const Problem& problem);
int64_t copied_row_stride(const Problem& problem);  // elements

// All but what depends on the Config: stages, splits, partials and tiles.
Params make_params(const Problem& problem);

// With K in `splits` parts: as many rows at a time as bound the memory of the partial sums.
int64_t rows_per_launch(const Params& params, int splits);

}  // namespace xgemm::cuda::w4a16::sm80
