#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status sm90_f16(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<__half, true>(kind, step, params, grid);
}
Status sm90_bf16(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<__nv_bfloat16, true>(kind, step, params, grid);
}
Status sm90_f32(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<float, true>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
