#include "cuda/gemm/sm90/persistent/instances.cuh"

namespace xgemm::cuda::gemm::sm90::persistent {

Status launch_f16(const Params& params, const Config& config, bool a_mn, bool b_mn,
                  cudaStream_t stream) {
  return launch_tile<__half>(params, config, a_mn, b_mn, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::persistent
