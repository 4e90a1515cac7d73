// Programmatic dependent launch between the kernels of a mixture of experts.
#pragma once

#include "cuda/ptx/griddep.h"

namespace xgemm::cuda::w4a16::grouped {

// Lets the next kernel of the stream start, then waits for the earlier ones: their launches and
// starts lie under each other, and none reads or writes what another has not finished.
template <bool kOverlap>
__device__ inline void wait_for_earlier() {
  if constexpr (kOverlap) {
    ptx::griddep_launch_dependents();
    ptx::griddep_wait();
  }
}

}  // namespace xgemm::cuda::w4a16::grouped
