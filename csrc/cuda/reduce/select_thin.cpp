// A thread for each output: few elements of each, at any strides.
#include <algorithm>

#include "cuda/reduce/families.h"
#include "cuda/reduce/params.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int kMaxThreads = 256;  // of a block

}  // namespace

bool fits_thin(const View& v) {
  const Plan& plan = v.plan;
  return !v.groups && plan.outputs < k31Bits && plan.extent <= kMaxOfThread &&
         plan.kept.count <= Params::kMaxKept && plan.reduced.count <= 2;
}

void consider_thin(const View& v, Choice* choice) {
  if (!fits_thin(v)) return;
  const bool few = v.small() && v.plan.extent <= kMaxShortColumnRows && v.plan.kept.count == 1 &&
                   v.plan.reduced.count == 1;
  Cut cut{.loads = v.plan.extent, .batch = 8, .resident = 1536, .end = kThinEnd};
  if (few) cut.best_threads = kMaxThreads;
  cut.slower = std::max(kThinBytes / static_cast<double>(v.element), 1.0);
  Choice thin{.config = {.kernel = few ? Kernel::kShortColumns : Kernel::kThin,
                         .reason = "few elements: a thread each"},
              .cost = choice->cost};
  for (cut.threads = kMinThreads; cut.threads <= kMaxThreads; cut.threads *= 2) {
    cut.tiles = ceil_div<int64_t>(v.plan.outputs, cut.threads);
    cut.run = v.element * std::min<int64_t>(v.kept().size, cut.threads);
    thin.consider(cut, 1, false, v.estimate(cut));
  }
  if (thin.cost < choice->cost) *choice = thin;
}

Config thin(const View& v) {
  Choice choice;
  consider_thin(v, &choice);
  return choice.config;
}

}  // namespace xgemm::cuda::reduce
