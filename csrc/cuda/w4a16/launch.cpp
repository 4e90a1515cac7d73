#include "cuda/w4a16/sm80/launch.h"

#include "cuda/w4a16/api.h"
#include "cuda/w4a16/sm90/register_resident/launch.h"
#include "cuda/w4a16/sm90/skinny/launch.h"
#include "cuda/w4a16/sm90/wgmma/launch.h"

namespace xgemm::cuda::w4a16 {
namespace {

struct Launch {
  const Problem& problem;
  void* workspace;
  cudaStream_t stream;

  Status operator()(const Nothing&) const { return {}; }
  Status operator()(const sm80::Config& config) const {
    return sm80::launch(problem, config, workspace, stream);
  }
  Status operator()(const sm90::skinny::Config& config) const {
    return sm90::skinny::launch(problem, config, stream);
  }
  Status operator()(const sm90::register_resident::Plan& plan) const {
    return sm90::register_resident::launch(problem, plan, stream);
  }
  Status operator()(const sm90::wgmma::Config& config) const {
    return sm90::wgmma::launch(problem, config, workspace, stream);
  }
};

}  // namespace

Status launch(const Problem& problem, const Choice& choice, void* workspace, cudaStream_t stream) {
  return std::visit(Launch{problem, workspace, stream}, choice.config);
}

}  // namespace xgemm::cuda::w4a16
