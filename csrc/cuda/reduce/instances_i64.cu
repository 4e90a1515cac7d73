#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status launch_i64(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<int64_t, false>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
