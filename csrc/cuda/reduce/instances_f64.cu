#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status launch_f64(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<double>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
