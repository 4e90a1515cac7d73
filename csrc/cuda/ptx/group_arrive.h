// Arrivals by one thread for a group of threads that have met before, and other orders that
// compute-sanitizer's racecheck does not follow.
//
// It follows a thread's own arrivals at mbarriers, and takes bar.arrive for nothing. Of a slot that
// three groups use it loses the order that named barriers give. It lets nobody pass a cluster's
// barrier before all threads wait there. In a build with XGEMM_RACECHECK, which setup.py makes, all
// threads of a group arrive, at mbarriers only, and wait where they arrive.
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

// A barrier of the cluster at which threads arrive together and wait when each needs to: what was
// before it must be visible already.
__device__ inline void cluster_barrier_begin() {
  cluster_arrive_relaxed();
  if constexpr (kAllArrive) cluster_wait();
}
__device__ inline void cluster_barrier_end() {
  if constexpr (!kAllArrive) cluster_wait();
}

// What MeetingPoints need in shared memory.
template <int kCount, bool kMemory = kAllArrive>
struct MeetingMemory {};
template <int kCount>
struct MeetingMemory<kCount, true> {
  uint64_t barriers[kCount];
};

// Named barriers from `first_id` on, at which threads meet those of other groups. At one of them
// always as many meet.
template <int kCount>
class MeetingPoints {
 public:
  __device__ MeetingPoints(MeetingMemory<kCount>& memory, int first_id)
      : memory_(memory), first_id_(first_id) {}

  // By one thread, before the threads begin.
  __device__ static void set_up(MeetingMemory<kCount>& memory, int point, int threads) {
    if constexpr (kAllArrive) mbarrier_init(&memory.barriers[point], threads);
  }

  __device__ void meet(int point, int threads) {
    if constexpr (kAllArrive) {
      mbarrier_arrive(&memory_.barriers[point]);
      mbarrier_wait(&memory_.barriers[point], parities_ >> point & 1);
      parities_ ^= 1u << point;
    } else {
      named_barrier_sync(first_id_ + point, threads);
    }
  }

  // To threads that meet there: what this one wrote to shared memory is there.
  __device__ void hand_over(int point, int threads) {
    if constexpr (kAllArrive) {
      meet(point, threads);
    } else {
      named_barrier_arrive(first_id_ + point, threads);
    }
  }

 private:
  MeetingMemory<kCount>& memory_;
  int first_id_;
  uint32_t parities_ = 0;
};

}  // namespace xgemm::ptx
