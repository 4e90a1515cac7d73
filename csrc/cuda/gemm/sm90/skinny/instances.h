// The compiled kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/sm90/skinny/params.h"

namespace xgemm::cuda::gemm::sm90::skinny {

struct Variant {
  int columns;              // one of kColumns
  bool wide_mn, narrow_mn;  // whether an operand is contiguous along its extent, not along K
};

Status launch_f16(const Params& params, const Variant& variant, int ctas, cudaStream_t stream);
Status launch_bf16(const Params& params, const Variant& variant, int ctas, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90::skinny
