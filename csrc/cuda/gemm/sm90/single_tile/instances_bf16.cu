#include "cuda/gemm/sm80/reduce.cuh"
#include "cuda/gemm/sm90/single_tile/instances.cuh"

namespace xgemm::cuda::gemm::sm90::single_tile {

Status launch_bf16(const Params& params, const Variant& variant, cudaStream_t stream) {
  return launch_tile<__nv_bfloat16>(params, variant, stream);
}

Status add_parts_bf16(const sm80::Params& sum, cudaStream_t stream) {
  return sm80::reduce<__nv_bfloat16, true>(sum, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
