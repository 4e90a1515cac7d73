#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status launch_i8(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<int8_t, false>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
