#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status launch_i8(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  if (is_ordered(kind)) return launch_u8(kind, step, params, grid);  // as BitTransform makes them
  return launch_typed<int8_t>(kind, step, params, grid);
}
Status launch_u8(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<uint8_t>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
