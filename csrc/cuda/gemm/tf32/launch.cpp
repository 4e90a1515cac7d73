#include "cuda/gemm/tf32/launch.h"

#include "common/math.h"
#include "cuda/gemm/fp32/copy.h"
#include "cuda/gemm/fp32/launch.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/tf32/sm80/launch.h"
#include "cuda/gemm/tf32/sm90/launch.h"

namespace xgemm::cuda::gemm::tf32 {

Status launch_sm80(const GemmProblem& problem, const Config& config, void* workspace,
                   cudaStream_t stream) {
  fp32::Params params = fp32::make_params(problem);
  fp32::set_splits(&params, config.splits, workspace);
  const Status status = sm80::launch(params, problem.precision, stream);
  if (!status.ok() || config.splits == 1) return status;
  return fp32::reduce(params, stream);
}

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream) {
  const bool swapped = config.kernel == Kernel::kTf32Swapped;
  char* free = static_cast<char*>(workspace);
  fp32::Copy copies[fp32::kMaxCopies];
  int count = 0;
  const auto copied = [&](const Matrix& matrix) -> Matrix {  // along k
    const int64_t batches = copied_batches(problem, matrix);
    const int64_t stride = fp32::copy_stride(problem.k);
    float* dst = reinterpret_cast<float*>(free);
    free += fp32::copy_bytes(batches, matrix.rows, problem.k);
    copies[count++] = {.src = static_cast<const float*>(matrix.data),
                       .outer = matrix.rows,
                       .inner = problem.k,
                       .outer_stride = matrix.row_stride,
                       .inner_stride = matrix.k_stride,
                       .batches = batches,
                       .batch_stride = matrix.batch_stride,
                       .dst = dst,
                       .dst_stride = stride};
    return {dst, matrix.rows, stride, 1, matrix.batch_stride != 0 ? matrix.rows * stride : 0};
  };
  Matrix a = a_of(problem), b = b_of(problem);
  if (config.copy_a) a = copied(a);
  if (config.copy_b) b = copied(b);
  if (const Status status = fp32::launch_copies(copies, count, stream); !status.ok()) {
    return status;
  }
  fp32::Params partials = fp32::make_params(problem);
  partials.splits = config.splits;
  partials.partials = reinterpret_cast<float*>(free);
  const Status status =
      sm90::launch(problem, config, swapped ? b : a, swapped ? a : b, swapped, partials, stream);
  if (!status.ok() || config.splits == 1) return status;
  return fp32::reduce(partials, stream);
}

}  // namespace xgemm::cuda::gemm::tf32
