#include "cuda/gemm/gemv/instances.cuh"

namespace xgemm::cuda::gemm::gemv {

Status sm90_f16(const Params& params, const Shape& shape, bool aligned, const Grid& grid,
                cudaStream_t stream) {
  return launch_typed<__half, true>(params, shape, aligned, grid, stream);
}
Status sm90_bf16(const Params& params, const Shape& shape, bool aligned, const Grid& grid,
                 cudaStream_t stream) {
  return launch_typed<__nv_bfloat16, true>(params, shape, aligned, grid, stream);
}

}  // namespace xgemm::cuda::gemm::gemv
