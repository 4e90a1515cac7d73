#include "cuda/gemm/sm80/reduce.cuh"
#include "cuda/gemm/sm90/single_tile/instances.cuh"

namespace xgemm::cuda::gemm::sm90::single_tile {

Status launch_f16(const Params& params, const Variant& variant, cudaStream_t stream) {
  return launch_tile<__half>(params, variant, stream);
}

Status add_parts_f16(const sm80::Params& sum, cudaStream_t stream) {
  return sm80::reduce<__half, true>(sum, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
