#include "cuda/gemm/align/launch.h"

#include "cuda/gemm/api.h"
#include "cuda/gemm/fp32/launch.h"
#include "cuda/gemm/gemv/launch.h"
#include "cuda/gemm/simt/launch.h"
#include "cuda/gemm/sm80/launch.h"
#include "cuda/gemm/sm90/persistent/launch.h"
#include "cuda/gemm/sm90/single_tile/launch.h"
#include "cuda/gemm/sm90/skinny/launch.h"
#include "cuda/gemm/tf32/launch.h"

namespace xgemm::cuda::gemm {
namespace {

// With copies of the operands that TMA cannot read, in the workspace.
Status launch_copied(const GemmProblem& problem, const Config& config, void* workspace,
                     cudaStream_t stream) {
  align::AlignedCopy copies[align::kMaxCopies];
  int count = 0;
  char* free = static_cast<char*>(workspace);
  const auto place = [&](align::AlignedCopy copy) {
    copy.dst = free;
    free += copy.bytes();
    copies[count] = copy;
    return &copies[count++];
  };
  const align::AlignedCopy* a = config.copy_a ? place(align::copy_of_a(problem)) : nullptr;
  const align::AlignedCopy* b = config.copy_b ? place(align::copy_of_b(problem)) : nullptr;
  const Status copied = align::copy(copies, count, stream);
  if (!copied.ok()) return copied;
  Config rest = config;
  rest.copy_a = rest.copy_b = false;
  return launch(align::with_copies(problem, a, b), rest, free, stream);
}

}  // namespace

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream) {
  if (problem.m == 0 || problem.n == 0) return {};
  for (int i = 0; i < problem.batch_dims; ++i) {
    if (problem.batch[i].size == 0) return {};
  }
  // These make copies of their own.
  if (config.kernel == Kernel::kFp32 || config.kernel == Kernel::kFp32Sm90 ||
      config.kernel == Kernel::kTf32SingleTile) {
    return fp32::launch(problem, config, workspace, stream);
  }
  if (config.kernel == Kernel::kTf32 || config.kernel == Kernel::kTf32Swapped) {
    return tf32::launch(problem, config, workspace, stream);
  }
  if (config.copy_a || config.copy_b) return launch_copied(problem, config, workspace, stream);
  switch (config.kernel) {
    case Kernel::kSm90Persistent:
      return sm90::persistent::launch(problem, config, workspace, stream);
    case Kernel::kSm90Skinny:
      return sm90::skinny::launch(problem, config, stream);
    case Kernel::kSm90SingleTile:
      return sm90::single_tile::launch(problem, config, stream);
    case Kernel::kGemv:
      return gemv::launch(problem, config, workspace, stream);
    case Kernel::kSm80:
      return sm80::launch(problem, config, workspace, stream);
    case Kernel::kFp32:
    case Kernel::kFp32Sm90:
    case Kernel::kTf32SingleTile:
    case Kernel::kTf32:
    case Kernel::kTf32Swapped:
      break;  // above
    case Kernel::kTf32Sm80:
      return tf32::launch_sm80(problem, config, workspace, stream);
    case Kernel::kSimt:
      return simt::launch(problem, config, stream);
  }
  return {cudaErrorInvalidValue, "choosing a dense kernel"};
}

}  // namespace xgemm::cuda::gemm
