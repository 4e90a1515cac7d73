#include "cuda/gemm/sm90/skinny/instances.cuh"

namespace xgemm::cuda::gemm::sm90::skinny {

Status launch_f16(const Params& params, const Variant& variant, int ctas, cudaStream_t stream) {
  return launch_tile<__half>(params, variant, ctas, stream);
}
Status launch_bf16(const Params& params, const Variant& variant, int ctas, cudaStream_t stream) {
  return launch_tile<__nv_bfloat16>(params, variant, ctas, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::skinny
