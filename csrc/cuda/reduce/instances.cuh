// From a Kind and a Step to the kernel compiled for them.
#pragma once

#include "cuda/reduce/columns.cuh"
#include "cuda/reduce/instances.h"
#include "cuda/reduce/lone_rows.cuh"
#include "cuda/reduce/short_rows.cuh"
#include "cuda/reduce/strided.cuh"
#include "cuda/reduce/wrapped.cuh"

namespace xgemm::cuda::reduce {

inline ElementsParams elements_params(const Params& p) {
  return {.in = p.in,
          .out = p.out,
          .reduced_stride = p.inner_stride,
          .kept_stride = p.row_stride,
          .kept_out_stride = p.row_out_stride,
          .extent = static_cast<uint32_t>(p.extent),
          .outputs = static_cast<uint32_t>(p.outputs),
          .base = p};
}

// What has_small says.
template <typename Op>
inline constexpr bool kSmall = kIsFloat<typename Op::Element> && sizeof(typename Op::Lane) == 4;

// Kernels that kFewKernels leaves out.
template <typename Op>
Status launch_frequent(Step step, const StridedParams& params, const Grid& grid) {
  switch (step) {
    case Step::kShortRows:
      return launch_grid(kWhere, grid, short_rows_kernel<Op, false>, params.base);
    case Step::kRaggedRows:
      return launch_grid(kWhere, grid, short_rows_kernel<Op, true>, params.base);
    case Step::kColumns:
      return launch_grid(kWhere, grid, columns_kernel<Op, false>, params.base);
    case Step::kRuns:
      return launch_grid(kWhere, grid, runs_kernel<Op>, params);
    case Step::kFlat:
      if constexpr (sizeof(typename Op::Element) < 4) {  // has_flat
        return launch_grid(kWhere, grid, flat_columns_kernel<Op>, params.base);
      }
      return kNoSuchKernel;
    case Step::kWrapped:
      if constexpr (!std::is_same_v<Op, Arg<typename Op::Element>>) {
        return launch_grid(kWhere, grid, wrapped_columns_kernel<Op>, params.base);
      }
      return kNoSuchKernel;
    default:
      return kNoSuchKernel;
  }
}

template <typename Op>
Status launch_small(Step step, const Params& params, const Grid& grid) {
  if (step == Step::kLoneRows) {
    return launch_grid(kWhere, grid, lone_rows_kernel<Op>, lone_rows_params(params));
  }
  if (step == Step::kShortColumns) {
    return launch_grid(kWhere, grid, short_columns_kernel<Op>, elements_params(params));
  }
  return launch_grid(kWhere, grid, warp_columns_kernel<Op>, elements_params(params));
}

template <typename Op, bool kFewKernels>
Status launch_op(Step step, const StridedParams& params, const Grid& grid) {
  switch (step) {
    case Step::kPieces:
      return launch_grid(kWhere, grid, pieces_kernel<Op>, params.base);
    case Step::kRows:
      return launch_grid(kWhere, grid, rows_kernel<Op>, params.base);
    case Step::kTeamRows:
      return launch_grid(kWhere, grid, team_rows_kernel<Op>, params.base);
    case Step::kShifted:
      return launch_grid(kWhere, grid, columns_kernel<Op, true>, params.base);
    case Step::kThin:
      return launch_grid(kWhere, grid, thin_columns_kernel<Op>, params.base);
    case Step::kStrided:
      return launch_grid(kWhere, grid, strided_kernel < Op, kRare<Op> ? 2 : 8 >, params);
    case Step::kLoneRows:
    case Step::kShortColumns:
    case Step::kWarpColumns:
      if constexpr (!kFewKernels && kSmall<Op>) return launch_small<Op>(step, params.base, grid);
      return kNoSuchKernel;
    default:
      if constexpr (!kFewKernels) return launch_frequent<Op>(step, params, grid);
      return kNoSuchKernel;
  }
}

// Where elements are compared: launch_i8.
template <typename T>
inline constexpr bool kReadAsUnsigned = std::is_same_v<T, int8_t>;

template <typename T>
Status launch_typed(Kind kind, Step step, const StridedParams& params, const Grid& grid) {
  switch (kind) {
    case Kind::kSum:
      return launch_op<Sum<T>, false>(step, params, grid);
    case Kind::kExtreme:
      if constexpr (!kReadAsUnsigned<T>) {
        return launch_op<Extreme<T>, false>(step, params, grid);
      }
      break;
    case Kind::kProd:
      return launch_op<Prod<T>, !kIsFloat<T>>(step, params, grid);
    case Kind::kArg:
      if constexpr (!kReadAsUnsigned<T>) return launch_op<Arg<T>, false>(step, params, grid);
      break;
    case Kind::kSquares:
      if constexpr (kIsFloat<T>) return launch_op<Squares<T>, false>(step, params, grid);
      break;
    case Kind::kPowers:
      if constexpr (kIsFloat<T>) {
        return launch_op<Powers<T>, true>(step, params, grid);
      }
      break;
  }
  return kNoSuchKernel;
}

}  // namespace xgemm::cuda::reduce
