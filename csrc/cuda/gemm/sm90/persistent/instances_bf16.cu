#include "cuda/gemm/sm90/persistent/instances.cuh"

namespace xgemm::cuda::gemm::sm90::persistent {

Status launch_bf16(const Params& params, const Config& config, bool a_mn, bool b_mn,
                   cudaStream_t stream) {
  return launch_tile<__nv_bfloat16>(params, config, a_mn, b_mn, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::persistent
