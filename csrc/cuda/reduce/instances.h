// The compiled kernels, in a translation unit for each type that takes long, and one for Hopper's
// builds.
#pragma once

#include "common/status.h"
#include "cuda/launch.h"
#include "cuda/reduce/params.h"
#include "cuda/reduce/problem.h"

namespace xgemm::cuda::reduce {

enum class Step : int8_t {
  kShortRows,
  kRaggedRows,
  kTeamRows,
  kLoneRows,
  kRowPieces,
  kRows,
  kRuns,
  kColumns,
  kShifted,
  kFlat,
  kThin,
  kShortColumns,
  kWarpColumns,
  kWrapped,
  kStrided,
  kPieces
};

constexpr Step step_of(Kernel kernel) { return static_cast<Step>(kernel); }
static_assert(step_of(Kernel::kStrided) == Step::kStrided);

using Launcher = Status(Kind kind, Step step, const StridedParams& params, const Grid& grid);
Launcher launch_f16, launch_bf16, launch_f32, launch_f64;
Launcher launch_i8, launch_i16, launch_i32, launch_i64, launch_u8;
Launcher sm90_f16, sm90_bf16, sm90_f32;  // row pieces

constexpr Status kNoSuchKernel = {cudaErrorInvalidValue, "choosing a reduction kernel"};
constexpr const char* kWhere = "the reduction kernel";

}  // namespace xgemm::cuda::reduce
