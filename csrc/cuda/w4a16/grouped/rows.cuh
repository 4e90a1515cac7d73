// Which rows a CTA has, found on the device.
#pragma once

#include "common/math.h"

namespace xgemm::cuda::w4a16::grouped {

// Slots sorted[experts + 1 + begin ...], `count` of them, all of expert `expert`; the number of
// experts stands for none. count is 0 where there is no such tile.
struct RowRange {
  int expert, begin, count;
};

// Rows `tile` of block_m, counted over all experts, and then over the slots of none. Called by
// whole warps. Bounds that moe_sort did not make give other rows, but none that are not there.
__device__ inline RowRange find_rows(const int32_t* sorted, int experts, int slots, int block_m,
                                     int tile, int lane) {
  constexpr int kEach = 4;  // buckets of a lane
  constexpr unsigned kAll = 0xffffffffu;
  RowRange found{0, 0, 0};
  for (int first = 0; first <= experts; first += 32 * kEach) {
    int bound[kEach + 1];
#pragma unroll
    for (int i = 0; i <= kEach; ++i) {
      const int bucket = first + lane * kEach + i;
      const int value = bucket <= experts ? sorted[bucket] : slots;
      bound[i] = min(max(value, 0), slots);
    }
    int tiles = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) tiles += ceil_div(max(bound[i + 1] - bound[i], 0), block_m);
    int before = tiles;  // with this lane's, then without
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAll, before, step);
      if (lane >= step) before += other;
    }
    const int all = __shfl_sync(kAll, before, 31);
    before -= tiles;
    if (tile < all) {
      const bool mine = tile >= before && tile < before + tiles;
      const unsigned owners = __ballot_sync(kAll, mine);
      if (mine) {
        int left = tile - before;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const int rows = max(bound[i + 1] - bound[i], 0), of_bucket = ceil_div(rows, block_m);
          if (left >= 0 && left < of_bucket) {
            found.expert = first + lane * kEach + i;
            found.begin = bound[i] + left * block_m;
            found.count = min(rows - left * block_m, block_m);
          }
          left -= of_bucket;
        }
      }
      const int owner = 31 - __clz(owners);
      found.expert = __shfl_sync(kAll, found.expert, owner);
      found.begin = __shfl_sync(kAll, found.begin, owner);
      found.count = __shfl_sync(kAll, found.count, owner);
      return found;
    }
    tile -= all;
  }
  return found;
}

// The slot at place `index` of the order; -1 where that is none.
__device__ inline int slot_at(const int32_t* sorted, int experts, int slots, int index) {
  const int slot = sorted[experts + 1 + index];
  return slot >= 0 && slot < slots ? slot : -1;
}

}  // namespace xgemm::cuda::w4a16::grouped
