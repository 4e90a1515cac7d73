// A thread for each output, as a model's candidates.
#pragma once

#include <algorithm>

#include "common/math.h"
#include "cuda/reduce/families.h"

namespace xgemm::cuda::reduce {

inline constexpr int kMaxThinThreads = 256;  // of a block

template <typename Search>
void consider_thin(const View& v, Search& search) {
  if (!fits_thin(v)) return;
  const bool few = v.small() && v.plan.extent <= kMaxShortColumnRows && v.plan.kept.count == 1 &&
                   v.plan.reduced.count == 1;
  Cut cut{.loads = v.plan.extent, .batch = 8, .resident = 1536, .end = kThinEnd};
  if (few) cut.best_threads = kMaxThinThreads;
  cut.slower = std::max(kThinBytes / static_cast<double>(v.element), 1.0);
  for (cut.threads = kMinThreads; cut.threads <= kMaxThinThreads; cut.threads *= 2) {
    cut.tiles = ceil_div<int64_t>(v.plan.outputs, cut.threads);
    cut.run = v.element * std::min<int64_t>(v.kept().size, cut.threads);
    search.consider({.kernel = few ? Kernel::kShortColumns : Kernel::kThin, .cut = cut});
  }
}

}  // namespace xgemm::cuda::reduce
