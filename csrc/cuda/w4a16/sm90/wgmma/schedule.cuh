// Which tiles a cluster takes, what of them a CTA, and the pipelines' state.
#pragma once

#include "common/math.h"
#include "cuda/tile/stream_k.cuh"
#include "cuda/w4a16/sm90/wgmma/params.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// A CTA's place in its cluster: the CTAs that share K lie `sharers` apart.
struct Place {
  int sharer, split;
};

// What a CTA does at a time: some units of K of a tile.
struct Segment {
  int m;              // first row of X
  int column;         // tile of columns
  int first, count;   // units of K
  uint32_t end_of_k;  // of the tile, in the clusters' common count of units
};

// Where the i-th range begins. Who has a tile's beginning has `lead` units more of the tile
// (lead_of in tile.h), the others fewer in proportion.
__device__ inline uint32_t begin_of_range(const Params& params, uint32_t i) {
  const uint32_t even = even_range_begin(i, params.units_each, params.units_extra);
  uint32_t within;
  params.by_units.divide(even, &within);
  if (within == 0) return even;
  return even + params.lead - params.by_units.divide(within * params.lead + params.units - 1);
}
// Of all tiles' units, what cluster `index` takes.
__device__ inline StreamKRange range_of(const Params& params, uint32_t index) {
  const uint32_t i = params.clusters - 1 - index;
  return {begin_of_range(params, i), begin_of_range(params, i + 1)};
}

// Walks over the segments of a CTA. Tiles come in groups of rows so that concurrent ones share
// operands in L2.
class Scheduler {
 public:
  __device__ Scheduler(const Params& params, Place place, int rows)
      : params_(params), place_(place), rows_(rows) {
    cluster_ = blockIdx.x >> (params.sharers_shift + params.split_shift);
    if (params.stream_k) {
      const StreamKRange range = range_of(params, cluster_);
      next_ = range.begin, end_ = range.end;
    } else {
      next_ = cluster_, end_ = params.tiles;
      first_ = params.units * place.split >> params.split_shift;
      count_ = (params.units * (place.split + 1) >> params.split_shift) - first_;
    }
  }

  __device__ bool next(Segment* segment) {
    if (done()) return false;
    if (!params_.stream_k) {
      locate(next_, segment);
      segment->first = first_, segment->count = count_;
      next_ += params_.clusters;
      return true;
    }
    const uint32_t tile = params_.by_units.divide(next_);
    locate(tile, segment);
    segment->end_of_k = (tile + 1) * params_.units;
    segment->first = next_ - tile * params_.units;
    segment->count = min(segment->end_of_k, end_) - next_;
    next_ += segment->count;
    return true;
  }

  __device__ uint32_t cluster() const { return cluster_; }

  __device__ bool done() const { return next_ >= end_; }
  // Of all segments to come.
  __device__ int64_t units() const {
    if (done()) return 0;
    if (params_.stream_k) return end_ - next_;
    return static_cast<int64_t>((end_ - next_ - 1) / params_.clusters + 1) * count_;
  }

 private:
  __device__ void locate(uint32_t tile, Segment* segment) const {
    uint32_t row = 0, group = tile;
    if (params_.row_tiles > 1) [[unlikely]] {  // out of the way of the first load
      uint32_t in_band;
      const uint32_t first = params_.by_band.divide(tile, &in_band) * params_.group_rows;
      const bool whole = first + params_.group_rows <= static_cast<uint32_t>(params_.row_tiles);
      group = (whole ? params_.by_rows : params_.by_last_rows).divide(in_band, &row);
      row += first;
    }
    segment->m = static_cast<int>(row) * rows_;
    segment->column = static_cast<int>(group) * params_.sharers + place_.sharer;
  }

  const Params& params_;
  Place place_;
  int rows_, first_ = 0, count_ = 0;
  uint32_t cluster_;
  uint32_t next_, end_;  // tiles, or units
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
