#include "cuda/reduce/instances.cuh"

namespace xgemm::cuda::reduce {

Status launch_i16(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<int16_t>(kind, step, params, grid);
}
Status launch_i32(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<int32_t>(kind, step, params, grid);
}
Status launch_i64(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  return launch_typed<int64_t>(kind, step, params, grid);
}

}  // namespace xgemm::cuda::reduce
