#include "cuda/gemm/sm90/small/instances.cuh"

namespace xgemm::cuda::gemm::sm90::small {

Status launch_bf16(const Params& params, const Variant& variant, cudaStream_t stream) {
  return launch_tile<__nv_bfloat16>(params, variant, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::small
