// Row pieces, of the kinds that has_small names.
#include "cuda/reduce/instances.h"
#include "cuda/reduce/lone_rows.cuh"

namespace xgemm::cuda::reduce {
namespace {

template <typename T>
Status launch_row_pieces(Kind kind, const Params& params, const Grid& grid) {
  if (kind == Kind::kSum) {
    return launch_grid(kWhere, grid, row_pieces_kernel<Sum<T>>, lone_rows_params(params));
  }
  if (kind == Kind::kExtreme) {
    return launch_grid(kWhere, grid, row_pieces_kernel<Extreme<T>>, lone_rows_params(params));
  }
  if constexpr (sizeof(typename Squares<T>::Lane) == 4) {
    if (kind == Kind::kSquares) {
      return launch_grid(kWhere, grid, row_pieces_kernel<Squares<T>>, lone_rows_params(params));
    }
  }
  return kNoSuchKernel;
}

}  // namespace

Status sm90_f16(Kind kind, Step, const StridedParams& params, const Grid& grid) {
  return launch_row_pieces<__half>(kind, params.base, grid);
}
Status sm90_bf16(Kind kind, Step, const StridedParams& params, const Grid& grid) {
  return launch_row_pieces<__nv_bfloat16>(kind, params.base, grid);
}
Status sm90_f32(Kind kind, Step, const StridedParams& params, const Grid& grid) {
  return launch_row_pieces<float>(kind, params.base, grid);
}

}  // namespace xgemm::cuda::reduce
