#include "cuda/w4a16/sm80/instances.cuh"

namespace xgemm::cuda::w4a16::sm80 {

Status launch_f16(const Params& params, int block_m, int block_n, cudaStream_t stream) {
  return launch_typed<__half>(params, block_m, block_n, stream);
}
Status launch_bf16(const Params& params, int block_m, int block_n, cudaStream_t stream) {
  return launch_typed<__nv_bfloat16>(params, block_m, block_n, stream);
}

}  // namespace xgemm::cuda::w4a16::sm80
