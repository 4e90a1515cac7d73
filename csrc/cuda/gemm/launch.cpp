#include "cuda/gemm/align/launch.h"

#include "cuda/gemm/api.h"
#include "cuda/gemm/fp32/copy.h"
#include "cuda/gemm/fp32/launch.h"
#include "cuda/gemm/fp32/sm90/launch.h"
#include "cuda/gemm/gemv/launch.h"
#include "cuda/gemm/simt/launch.h"
#include "cuda/gemm/sm80/launch.h"
#include "cuda/gemm/sm90/persistent/launch.h"
#include "cuda/gemm/sm90/single_tile/launch.h"
#include "cuda/gemm/sm90/skinny/launch.h"
#include "cuda/gemm/tf32/launch.h"

namespace xgemm::cuda::gemm {
namespace {

Status launch(const GemmProblem&, const Nothing&, void*, cudaStream_t) { return {}; }

// The launch that stands beside a config is that of its kernel.
Status launch_kernel(const GemmProblem& problem, const Choice& choice, void* workspace,
                     cudaStream_t stream) {
  void* const rest = static_cast<char*>(workspace) + choice.copies.bytes;
  return std::visit([&](const auto& config) { return launch(problem, config, rest, stream); },
                    choice.config);
}

}  // namespace

Status launch(const GemmProblem& given, const Choice& choice, void* workspace,
              cudaStream_t stream) {
  if (!choice.copies.any()) return launch_kernel(given, choice, workspace, stream);
  GemmProblem problem = given;
  const align::CopyList list = align::read_copies(&problem, choice.copies, workspace);
  const auto copy = problem.dtype == DType::kF32 ? fp32::copy : align::copy;
  const Status status = copy(list.copies, list.count, stream);
  return status.ok() ? launch_kernel(problem, choice, workspace, stream) : status;
}

}  // namespace xgemm::cuda::gemm
