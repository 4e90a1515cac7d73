#include "cuda/w4a16/sm90/skinny/instances.cuh"

namespace xgemm::cuda::w4a16::sm90::skinny {

Status launch_f16(const Params& params, const Work& work, cudaStream_t stream) {
  return launch_typed<__half>(params, work, stream);
}
Status launch_bf16(const Params& params, const Work& work, cudaStream_t stream) {
  return launch_typed<__nv_bfloat16>(params, work, stream);
}

}  // namespace xgemm::cuda::w4a16::sm90::skinny
