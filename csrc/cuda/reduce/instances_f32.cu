#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status launch_f32(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<float>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
