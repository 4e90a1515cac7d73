// A router's slots ordered by expert: a stable counting sort by one CTA.
#pragma once

#include <algorithm>

#include "common/math.h"
#include "cuda/launch.h"
#include "cuda/shared_memory.h"
#include "cuda/w4a16/grouped/instances.h"
#include "cuda/w4a16/grouped/overlap.cuh"

namespace xgemm::cuda::w4a16::grouped {

inline constexpr int kMaxThreads = 1024, kMaxWarps = kMaxThreads / 32;
// Experts beyond which their counts do not fit into shared memory.
inline constexpr int kMaxCounted = 1023;

// The bucket of a slot: its expert, or the number of experts.
template <typename Id>
__device__ int bucket_of(const Sort& p, int64_t slot) {
  const Id id = static_cast<const Id*>(p.ids)[slot];
  return id < 0 || id >= p.experts ? p.experts : static_cast<int>(id);
}

// The sum of the values of the threads before this one. `sums` has room for kMaxWarps; called by
// all threads, which have read what they want of shared memory by then.
__device__ inline int sum_before(int value, int* sums, int* all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int before = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) sums[warp] = before;
  __syncthreads();
  int of_warps = 0, total = 0;
  for (int w = 0; w < warps; ++w) {
    if (w == warp) of_warps = total;
    total += sums[w];
  }
  __syncthreads();
  *all = total;
  return of_warps + before - value;
}

// Few experts: a round takes a slot for each thread. counts[warp][bucket] is that of the round, and
// next[bucket] the place in the order that its first slot gets.
template <typename Id, bool kOverlap>
__global__ void __launch_bounds__(kMaxThreads) counted_kernel(const __grid_constant__ Sort p) {
  XGEMM_DYNAMIC_SHARED(int, sort_smem, 16);
  wait_for_earlier<kOverlap>();
  const int threads = blockDim.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int warps = threads / 32, buckets = p.experts + 1;
  int* sums = sort_smem;
  int* next = sums + kMaxWarps;
  auto* counts = reinterpret_cast<uint8_t*>(next + buckets);  // [warps][buckets]

  for (int b = thread; b < buckets; b += threads) next[b] = 0;
  __syncthreads();
  for (int64_t s = thread; s < p.slots; s += threads) atomicAdd(&next[bucket_of<Id>(p, s)], 1);
  __syncthreads();
  int begin = 0;
  for (int first = 0; first < buckets; first += threads) {
    const int b = first + thread, count = b < buckets ? next[b] : 0;
    int all = 0;
    const int before = begin + sum_before(count, sums, &all);
    if (b < buckets) p.sorted[b] = next[b] = before;
    begin += all;
  }

  int32_t* order = p.sorted + buckets;
  for (int64_t first = 0; first < p.slots; first += threads) {
    for (int i = thread; i < warps * buckets; i += threads) counts[i] = 0;
    __syncthreads();
    const int64_t slot = first + thread;
    const int bucket = slot < p.slots ? bucket_of<Id>(p, slot) : -1;
    int rank = 0, same = 0;  // of the warp's slots in this bucket: before this one, and all
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const bool equal = __shfl_sync(0xffffffffu, bucket, i) == bucket;
      rank += equal && i < lane ? 1 : 0;
      same += equal ? 1 : 0;
    }
    if (bucket >= 0 && rank == 0) counts[warp * buckets + bucket] = static_cast<uint8_t>(same);
    __syncthreads();
    int place = 0;
    if (bucket >= 0) {
      place = next[bucket] + rank;
      for (int w = 0; w < warp; ++w) place += counts[w * buckets + bucket];
    }
    __syncthreads();
    if (bucket >= 0) order[place] = static_cast<int32_t>(slot);
    for (int b = thread; b < buckets; b += threads) {
      int count = 0;
      for (int w = 0; w < warps; ++w) count += counts[w * buckets + b];
      next[b] += count;
    }
    __syncthreads();
  }
}

// Any number of experts: a thread has a bucket, and looks at all slots.
template <typename Id, bool kOverlap>
__global__ void __launch_bounds__(kMaxThreads) searched_kernel(const __grid_constant__ Sort p) {
  XGEMM_DYNAMIC_SHARED(int, sums, 16);
  wait_for_earlier<kOverlap>();
  const int buckets = p.experts + 1;
  int begin = 0;
  for (int first = 0; first < buckets; first += static_cast<int>(blockDim.x)) {
    const int b = first + static_cast<int>(threadIdx.x);
    int count = 0;
    if (b < buckets) {
      for (int64_t s = 0; s < p.slots; ++s) count += bucket_of<Id>(p, s) == b ? 1 : 0;
    }
    int all = 0;
    int place = begin + sum_before(count, sums, &all);
    begin += all;
    if (b >= buckets) continue;
    p.sorted[b] = place;
    for (int64_t s = 0; count > 0; ++s) {
      if (bucket_of<Id>(p, s) != b) continue;
      p.sorted[buckets + place++] = static_cast<int32_t>(s);
      --count;
    }
  }
}

template <typename Id, bool kOverlap>
Status sort_typed(const Sort& p, cudaStream_t stream) {
  const int64_t most = std::max<int64_t>(p.slots, p.experts + 1);
  const int threads = static_cast<int>(std::min<int64_t>(round_up<int64_t>(most, 32), kMaxThreads));
  Grid grid{
      .blocks = dim3(1), .threads = dim3(threads), .stream = stream, .overlaps_previous = kOverlap};
  const char* where = "the order of the experts' rows";
  grid.shared_bytes = kMaxWarps * sizeof(int);
  if (p.experts > kMaxCounted) return launch_grid(where, grid, searched_kernel<Id, kOverlap>, p);
  grid.shared_bytes += (p.experts + 1) * (sizeof(int) + threads / 32);
  return launch_grid(where, grid, counted_kernel<Id, kOverlap>, p);
}

template <bool kOverlap>
Status launch_sort(const Sort& p, cudaStream_t stream) {
  return p.wide ? sort_typed<int64_t, kOverlap>(p, stream)
                : sort_typed<int32_t, kOverlap>(p, stream);
}

}  // namespace xgemm::cuda::w4a16::grouped
