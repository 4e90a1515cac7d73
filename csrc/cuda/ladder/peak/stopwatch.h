// The clock of a multiprocessor while a loop runs: cycles by nanoseconds.
#pragma once

#include <cstdint>

#include "cuda/ptx/clock.h"

namespace xgemm::cuda::ladder {

// Begins where it is declared; `add` is for the one thread that reports.
class Stopwatch {
 public:
  __device__ Stopwatch() : cycles_(ptx::clock()), nanoseconds_(ptx::globaltimer()) {}

  // Sums over launches: one of them may be as short as a few steps of the timer.
  __device__ void add(int64_t* clocks) const {
    clocks[0] += ptx::clock() - cycles_;
    clocks[1] += ptx::globaltimer() - nanoseconds_;
  }

 private:
  int64_t cycles_, nanoseconds_;
};

}  // namespace xgemm::cuda::ladder
