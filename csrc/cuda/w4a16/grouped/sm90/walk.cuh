// Which tiles a persistent CTA takes, found on the device.
#pragma once

#include "cuda/w4a16/grouped/params.h"
#include "cuda/w4a16/grouped/sm90/tile.h"

namespace xgemm::cuda::w4a16::grouped::sm90 {

// By all threads of the CTA. Bounds that moe_sort did not make give other rows, but none that are
// not there.
template <typename Tile>
__device__ inline void fill_table(const Params& p, TileTable& table, int thread) {
  for (int i = thread; i < p.experts + 2; i += Tile::kThreads) {
    table.place[i] = i > p.experts ? p.slots : min(max(p.sorted[i], 0), p.slots);
  }
  __syncthreads();
  if (thread < 32) {
    const int buckets = p.experts + 1, each = ceil_div(buckets, 32), first = thread * each;
    const auto tiles_of = [&](int bucket) {
      return ceil_div(max(table.place[bucket + 1] - table.place[bucket], 0), Tile::kRows);
    };
    int tiles = 0;
    for (int i = first; i < min(first + each, buckets); ++i) tiles += tiles_of(i);
    int before = tiles;  // with this lane's, then without
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (thread >= step) before += other;
    }
    if (thread == 31) table.tile[buckets] = before;
    before -= tiles;
    for (int i = first; i < min(first + each, buckets); ++i) {
      table.tile[i] = before;
      before += tiles_of(i);
    }
  }
  __syncthreads();
}

struct ExpertTile {
  int expert;        // the number of experts stands for none
  int begin, count;  // places in the order
  int column;        // tile of columns
  bool alone;        // no other tile reads the same of the weight
};

// By whole warps, whose lanes all see the same. Tiles that neighbouring CTAs have at a time are
// those of all rows of some columns, so that the weight comes from memory once.
template <typename Tile>
class TileWalk {
 public:
  __device__ TileWalk(const Params& p, const TileTable& table, int lane)
      : p_(p),
        table_(table),
        lane_(lane),
        next_(blockIdx.x),
        end_(table.tile[p.experts + 1] * p.column_blocks) {}

  __device__ bool next(ExpertTile* tile) {
    if (next_ >= end_) return false;
    const int of_rows = next_ / p_.column_blocks, buckets = p_.experts + 1;
    // The first bucket from this one on that ends behind the tile.
#pragma unroll 1
    while (true) {
      const int last = table_.tile[min(bucket_ + 1 + lane_, buckets)];
      const unsigned behind = __ballot_sync(~0u, last > of_rows);
      if (behind != 0) {
        bucket_ += __ffs(static_cast<int>(behind)) - 1;
        break;
      }
      bucket_ += 32;
    }
    const int first = table_.tile[bucket_], of_bucket = table_.tile[bucket_ + 1] - first;
    const int within = next_ - first * p_.column_blocks;
    const int column = within / of_bucket, row = within % of_bucket * Tile::kRows;
    tile->expert = bucket_;
    tile->begin = table_.place[bucket_] + row;
    tile->count = min(table_.place[bucket_ + 1] - tile->begin, Tile::kRows);
    tile->column = column;
    tile->alone = of_bucket == 1;
    next_ += gridDim.x;
    return true;
  }

 private:
  const Params& p_;
  const TileTable& table_;
  int lane_, bucket_ = 0;
  int next_, end_;
};

}  // namespace xgemm::cuda::w4a16::grouped::sm90
