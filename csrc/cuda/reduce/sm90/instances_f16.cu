#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status sm90_f16(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<__half, true>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
