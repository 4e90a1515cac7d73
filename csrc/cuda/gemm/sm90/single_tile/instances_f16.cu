#include "cuda/gemm/sm90/single_tile/instances.cuh"

namespace xgemm::cuda::gemm::sm90::single_tile {

Status launch_f16(const Params& params, const Variant& variant, cudaStream_t stream) {
  return launch_tile<__half>(params, variant, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
