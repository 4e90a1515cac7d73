#include "cuda/gemm/sm90/instances.cuh"

namespace xgemm::cuda::gemm::sm90 {

Status launch_f16(const Params& params, const Config& config, bool a_mn, bool b_mn,
                  cudaStream_t stream) {
  return launch_tile<__half>(params, config, a_mn, b_mn, stream);
}

}  // namespace xgemm::cuda::gemm::sm90
