// Arrivals by one thread for a group of threads that have met before.
//
// compute-sanitizer's racecheck takes that for no order of what the others did: it follows a
// thread's own arrivals, and takes bar.arrive for nothing. In a build with XGEMM_RACECHECK, which
// setup.py makes, all threads of a group arrive, and all wait where some would only arrive.
#pragma once

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

#if defined(XGEMM_RACECHECK)
inline constexpr bool kAllArrive = true;
#else
inline constexpr bool kAllArrive = false;
#endif

// What a barrier counts when `groups` groups of `threads` threads have arrived.
__device__ constexpr uint32_t group_arrivals(uint32_t groups, uint32_t threads = 32) {
  return kAllArrive ? groups * threads : groups;
}

// By all threads of a group, at the barrier of each of `ctas` CTAs of the cluster; `thread` counts
// the threads.
__device__ inline void mbarrier_arrive_group_cluster(uint64_t* barrier, int thread, int ctas) {
  if constexpr (kAllArrive) {
    for (int cta = 0; cta < ctas; ++cta) mbarrier_arrive_cluster(barrier, cta);
  } else if (thread < ctas) {
    mbarrier_arrive_cluster(barrier, thread);
  }
}

// To threads at named_barrier_sync: what this one wrote to shared memory is there.
__device__ inline void named_barrier_hand_over(int id, int threads) {
  if constexpr (kAllArrive) {
    named_barrier_sync_apart(id, threads);
  } else {
    named_barrier_arrive(id, threads);
  }
}

}  // namespace xgemm::ptx
