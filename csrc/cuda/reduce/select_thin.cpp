// A thread for each output: few elements of each, at any strides.
#include "cuda/reduce/families.h"
#include "cuda/reduce/params.h"
#include "cuda/reduce/thin.h"

namespace xgemm::cuda::reduce {
namespace {

struct Model : CutModel {
  using CutModel::CutModel;

  template <typename Search>
  void candidates(Search& search) const {
    consider_thin(v_, search);
  }
};

}  // namespace

bool fits_thin(const View& v) {
  const Plan& plan = v.plan;
  return !v.groups && plan.outputs < k31Bits && plan.extent <= kMaxOfThread &&
         plan.kept.count <= Params::kMaxKept && plan.reduced.count <= 2;
}

Config thin(const View& v, choose::Listing<Config>* listing) {
  const auto best = choose::pick<Config>(Model(v), listing);
  return best ? best->choice : Config{};
}

}  // namespace xgemm::cuda::reduce
