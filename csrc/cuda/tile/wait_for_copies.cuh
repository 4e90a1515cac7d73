// cp.async into a pipeline whose number of stages is known at run time.
#pragma once

#include "cuda/ptx/cp_async.h"

namespace xgemm::cuda {

// Until at most `pending`, 0 to kMaxPending, of this thread's groups of copies are under way: the
// instruction takes the number as a constant.
template <int kMaxPending>
__device__ __forceinline__ void wait_for_copies(int pending) {
  if constexpr (kMaxPending == 0) {
    ptx::cp_async_wait_group<0>();
  } else if (pending == kMaxPending) {
    ptx::cp_async_wait_group<kMaxPending>();
  } else {
    wait_for_copies<kMaxPending - 1>(pending);
  }
}

}  // namespace xgemm::cuda
