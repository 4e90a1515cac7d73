// The compiled kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/sm80/params.h"
#include "cuda/gemm/sm90/single_tile/params.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

struct Variant {
  int block_m, block_n;
  bool a_mn, b_mn;  // whether an operand is contiguous along its extent, not along K
};

Status launch_f16(const Params& params, const Variant& variant, cudaStream_t stream);
Status launch_bf16(const Params& params, const Variant& variant, cudaStream_t stream);

// The second launch, where K has parts. It starts under the first, and waits for it.
Status add_parts_f16(const sm80::Params& sum, cudaStream_t stream);
Status add_parts_bf16(const sm80::Params& sum, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90::single_tile
