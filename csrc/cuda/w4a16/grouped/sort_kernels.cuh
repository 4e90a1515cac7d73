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

// Of the lanes of a warp that have this one's bucket: those before it, and all. `bits`: of a
// bucket.
struct Rank {
  int before, all;
};
__device__ inline Rank rank_in_warp(int bucket, int bits, int lane) {
  unsigned same = __ballot_sync(~0u, bucket >= 0);
  for (int bit = 0; bit < bits; ++bit) {
    const bool set = bucket >> bit & 1;
    const unsigned others = __ballot_sync(~0u, set);
    same &= set ? others : ~others;
  }
  return {__popc(same & ((1u << lane) - 1)), __popc(same)};
}

// Calls visit(slot, bucket) for a warp's slots, 32 at a time; behind the last one bucket is -1.
template <typename Id, typename Visit>
__device__ void for_slots(const Sort& p, int64_t begin, int64_t end, int lane, Visit visit) {
  constexpr int kTogether = 4;  // ids on their way
  for (int64_t first = begin; first < end; first += 32 * kTogether) {
    int buckets[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int64_t slot = first + 32 * i + lane;
      buckets[i] = slot < end ? bucket_of<Id>(p, slot) : -1;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + 32 * i < end) visit(first + 32 * i + lane, buckets[i]);
    }
  }
}

// Few experts: each warp takes neighbouring slots, counts them, and puts them behind those of the
// warps before it. counts[warp][bucket] is that warp's, then what is before its next slot of the
// bucket; begin[bucket] where the bucket begins.
template <typename Id, bool kOverlap>
__global__ void __launch_bounds__(kMaxThreads) counted_kernel(const __grid_constant__ Sort p) {
  XGEMM_DYNAMIC_SHARED(int, sort_smem, 16);
  wait_for_earlier<kOverlap>();
  const int threads = blockDim.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int warps = threads / 32, buckets = p.experts + 1, bits = 32 - __clz(p.experts);
  int *sums = sort_smem, *begin = sums + kMaxWarps, *counts = begin + buckets;
  int* own = counts + warp * buckets;
  const int64_t each = round_up<int64_t>(ceil_div<int64_t>(p.slots, warps), 32);
  const int64_t from = min(each * warp, p.slots), to = min(from + each, p.slots);

  for (int i = thread; i < warps * buckets; i += threads) counts[i] = 0;
  __syncthreads();
  for_slots<Id>(p, from, to, lane, [&](int64_t, int bucket) {
    const Rank rank = rank_in_warp(bucket, bits, lane);
    if (bucket >= 0 && rank.before == 0) own[bucket] += rank.all;
    __syncwarp();
  });
  __syncthreads();
  int before_round = 0;
  for (int first = 0; first < buckets; first += threads) {
    const int b = first + thread;
    int count = 0, all = 0;
    for (int w = 0; b < buckets && w < warps; ++w) {
      const int of_warp = counts[w * buckets + b];
      counts[w * buckets + b] = count;
      count += of_warp;
    }
    const int before = before_round + sum_before(count, sums, &all);
    if (b < buckets) p.sorted[b] = begin[b] = before;
    before_round += all;
  }
  __syncthreads();
  int32_t* order = p.sorted + buckets;
  for_slots<Id>(p, from, to, lane, [&](int64_t slot, int bucket) {
    const Rank rank = rank_in_warp(bucket, bits, lane);
    const int before = bucket >= 0 ? begin[bucket] + own[bucket] : 0;
    __syncwarp();  // all have read it
    if (bucket >= 0) order[before + rank.before] = static_cast<int32_t>(slot);
    if (bucket >= 0 && rank.before == 0) own[bucket] += rank.all;
    __syncwarp();
  });
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
  int warps = static_cast<int>(std::min<int64_t>(ceil_div<int64_t>(most, 32), kMaxWarps));
  Grid grid{.blocks = dim3(1), .stream = stream, .overlaps_previous = kOverlap};
  const char* where = "the order of the experts' rows";
  grid.shared_bytes = kMaxWarps * sizeof(int);
  if (p.experts > kMaxCounted) {
    grid.threads = dim3(32 * warps);
    return launch_grid(where, grid, searched_kernel<Id, kOverlap>, p);
  }
  // begin[buckets] and counts[warps][buckets], of 48 KB that a block has without asking.
  constexpr int kMaxCounts = (48 << 10) / sizeof(int) - kMaxWarps;
  const int buckets = p.experts + 1;
  warps = std::min(warps, kMaxCounts / buckets - 1);
  grid.threads = dim3(32 * warps);
  grid.shared_bytes += buckets * (warps + 1) * sizeof(int);
  return launch_grid(where, grid, counted_kernel<Id, kOverlap>, p);
}

template <bool kOverlap>
Status launch_sort(const Sort& p, cudaStream_t stream) {
  return p.wide ? sort_typed<int64_t, kOverlap>(p, stream)
                : sort_typed<int32_t, kOverlap>(p, stream);
}

}  // namespace xgemm::cuda::w4a16::grouped
