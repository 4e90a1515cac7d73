#include "cuda/w4a16/grouped/sm90/wgmma_instances.cuh"

namespace xgemm::cuda::w4a16::grouped::sm90 {

Status launch_wgmma_f16(const Params& params, const Persistent& instance, cudaStream_t stream) {
  return launch_wgmma<__half>(params, instance, stream);
}

}  // namespace xgemm::cuda::w4a16::grouped::sm90
