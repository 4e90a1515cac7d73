#include "cuda/gemm/sm80/instances.cuh"

namespace xgemm::cuda::gemm::sm80 {

Status launch_f16(const Params& params, const Config& config, cudaStream_t stream) {
  return launch_typed<__half>(params, config, stream);
}

}  // namespace xgemm::cuda::gemm::sm80
