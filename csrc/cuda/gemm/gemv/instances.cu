#include "cuda/gemm/gemv/instances.cuh"

namespace xgemm::cuda::gemm::gemv {

Status portable_f16(const Params& params, const Shape& shape, bool aligned, const Grid& grid,
                    cudaStream_t stream) {
  return launch_typed<__half, false>(params, shape, aligned, grid, stream);
}
Status portable_bf16(const Params& params, const Shape& shape, bool aligned, const Grid& grid,
                     cudaStream_t stream) {
  return launch_typed<__nv_bfloat16, false>(params, shape, aligned, grid, stream);
}

Status sum_splits_f16(const Params& params, cudaStream_t stream) {
  return sum_splits<__half>(params, stream);
}
Status sum_splits_bf16(const Params& params, cudaStream_t stream) {
  return sum_splits<__nv_bfloat16>(params, stream);
}

}  // namespace xgemm::cuda::gemm::gemv
