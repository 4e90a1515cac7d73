// Where a producer or a consumer stands in a pipeline of stages in shared memory.
#pragma once

#include <cstdint>

namespace xgemm::cuda {

// The stage that comes next, and the parity of the pass over the stages: an mbarrier's phase of
// this parity ends when the stage is full (for a consumer). A producer waits for the stage to be
// empty with the opposite parity, so that the first pass waits for nothing.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // Past `count` stages, no more than there are: of a consumer that alternates with others.
  __device__ void advance(int count) {
    stage += count;
    if (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
  // Where a pipeline stands after so many stages.
  __device__ static PipelineState after(uint32_t count) {
    return {static_cast<int>(count % kStages), count / kStages % 2};
  }
  __device__ PipelineState next() const {
    PipelineState state = *this;
    state.advance();
    return state;
  }
};

// The same where the number of stages is known at run time.
struct DynamicPipelineState {
  int stages, stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace xgemm::cuda
