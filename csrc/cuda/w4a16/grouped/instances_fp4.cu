// MXFP4 weights.
#include "cuda/w4a16/grouped/instances.cuh"

namespace xgemm::cuda::w4a16::grouped {

Status launch_fp4_f16(const Params& params, const Instance& instance, cudaStream_t stream) {
  return launch_typed<__half, false, true>(params, instance, stream);
}
Status launch_fp4_bf16(const Params& params, const Instance& instance, cudaStream_t stream) {
  return launch_typed<__nv_bfloat16, false, true>(params, instance, stream);
}

}  // namespace xgemm::cuda::w4a16::grouped
