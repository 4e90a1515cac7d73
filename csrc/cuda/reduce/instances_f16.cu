#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status launch_f16(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<__half>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
