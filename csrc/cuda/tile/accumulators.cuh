// A thread's accumulators in wgmma's (and mma.sync's) layout: of every eight columns two
// neighbours in each of two rows, eight apart, which are the four floats of a quad.
#pragma once

#include "common/activation.h"

namespace xgemm::cuda {

// Quad `j`, as it is sent to another CTA or left in memory.
__device__ __forceinline__ float4 quad_of(const float* acc, int j) {
  return {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]};
}

__device__ __forceinline__ void add_quad(float* acc, int j, const float4& x) {
  acc[4 * j] += x.x, acc[4 * j + 1] += x.y;
  acc[4 * j + 2] += x.z, acc[4 * j + 3] += x.w;
}

// Adds a number to each of the thread's two rows: the bias of a product that runs swapped.
template <int kSize>
__device__ __forceinline__ void add_to_rows(float (&acc)[kSize], float upper, float lower) {
#pragma unroll
  for (int j = 0; j < kSize / 4; ++j) add_quad(acc, j, {upper, upper, lower, lower});
}

// Activates kStep values at a time, in turns through the front of the array: a register's number is
// no variable, and so there is one copy of the activations' code for every kStep values. A larger
// step hides more of what a value waits for, and takes longer to fetch.
template <int kStep, int kSize>
__device__ __forceinline__ void activate_in_turns(Activation activation, float (&acc)[kSize]) {
  static_assert(kSize % kStep == 0, "the accumulators must be whole steps");
#pragma unroll 1
  for (int step = 0; step < kSize / kStep; ++step) {
    float done[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) done[i] = activate(activation, acc[i]);
#pragma unroll
    for (int i = 0; i < kSize - kStep; ++i) acc[i] = acc[i + kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) acc[kSize - kStep + i] = done[i];
  }
}

}  // namespace xgemm::cuda
