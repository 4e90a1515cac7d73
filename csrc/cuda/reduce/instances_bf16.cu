#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status launch_bf16(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<__nv_bfloat16>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
