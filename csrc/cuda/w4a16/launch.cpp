#include "cuda/w4a16/sm80/launch.h"

#include "cuda/w4a16/api.h"
#include "cuda/w4a16/sm90/register_resident/launch.h"
#include "cuda/w4a16/sm90/skinny/launch.h"
#include "cuda/w4a16/sm90/wgmma/launch.h"

namespace xgemm::cuda::w4a16 {

Status launch(const Problem& problem, const Config& config, void* workspace, cudaStream_t stream) {
  if (problem.m == 0 || problem.weight.layout.n == 0) return {};
  switch (config.kernel) {
    case Kernel::kSm80:
      return sm80::launch(problem, config, workspace, stream);
    case Kernel::kSm90Skinny:
      return sm90::skinny::launch(problem, config, stream);
    case Kernel::kSm90RegisterResident:
      return sm90::register_resident::launch(problem, config, stream);
    case Kernel::kSm90Wgmma:
      return sm90::wgmma::launch(problem, config, workspace, stream);
  }
  return {cudaErrorInvalidValue, "choosing a W4A16 kernel"};
}

}  // namespace xgemm::cuda::w4a16
