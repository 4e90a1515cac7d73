// Which tiles, and which part of K of them, a cluster takes.
#pragma once

#include "common/math.h"
#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/params.h"

namespace xgemm::cuda::gemm::sm90 {

// What a CTA does at a time: some k-tiles of a tile.
struct Segment {
  int m, n;  // first row, first column
  BatchPosition batch;
  int first, count;  // k-tiles
  uint32_t end;      // of the tile, in the common count of shared k-tiles
};

// The k-tiles that cluster `index` takes of those that are shared out. Ranges ascend while clusters
// descend: a sum that the end of a range leaves incomplete is completed by clusters of lower rank,
// which the GPU has started before.
struct Range {
  uint32_t begin, end;
};
__device__ inline Range range_of(const Params& params, uint32_t index, uint32_t clusters) {
  const uint32_t i = clusters - 1 - index;
  const uint32_t begin = i * params.share + min(i, params.share_extra);
  return {begin, begin + params.share + (i < params.share_extra ? 1 : 0)};
}

// Walks over the segments of a cluster, first those of its share of the tiles that are shared, in
// groups of rows so that concurrent tiles have operands in common in L2.
template <typename Config>
class Scheduler {
 public:
  __device__ Scheduler(const Params& params, int cta_rank)
      : params_(params), cta_rank_(cta_rank), next_(params.shared_tiles + cluster()) {
    if (params.shared_tiles > 0) [[unlikely]] {
      const Range range = range_of(params, cluster(), clusters());
      next_shared_ = range.begin, end_shared_ = range.end;
    }
  }

  __device__ uint32_t cluster() const { return blockIdx.x / Config::kCluster; }
  __device__ uint32_t clusters() const { return gridDim.x / Config::kCluster; }

  // K-tiles of all segments; before the first next().
  __device__ int64_t steps() const {
    const uint32_t turns = params_.turns + (cluster() < params_.turns_rest ? 1 : 0);
    return static_cast<int64_t>(turns) * count() + (end_shared_ - next_shared_);
  }

  __device__ bool next(Segment* segment) {
    if (next_shared_ < end_shared_) [[unlikely]] {
      const uint32_t tile = params_.by_k_tiles.divide(next_shared_);
      segment->end = (tile + 1) * params_.k_tiles;
      segment->first = static_cast<int>(next_shared_ - tile * params_.k_tiles);
      segment->count = static_cast<int>(min(segment->end, end_shared_) - next_shared_);
      next_shared_ += segment->count;
      locate(tile, segment);
      return true;
    }
    if (next_ >= params_.tiles) return false;
    segment->first = split() && cta_rank_ > 0 ? first_half() : 0, segment->count = count();
    locate(next_, segment);
    next_ += clusters();
    return true;
  }

 private:
  __device__ bool split() const { return Config::kCluster > 1 && params_.split; }
  __device__ int first_half() const { return (params_.k_tiles + 1) / 2; }
  // K-tiles of a whole tile that this CTA has.
  __device__ int count() const {
    if (!split()) return params_.k_tiles;
    return cta_rank_ == 0 ? first_half() : params_.k_tiles - first_half();
  }

  __device__ void locate(uint32_t tile, Segment* segment) const {
    segment->batch = {0, 0};
    if (params_.batched) {
      const uint32_t matrix = params_.per_matrix.divide(tile);
      const uint32_t outer = params_.batch_inner.divide(matrix);
      segment->batch = {static_cast<int>(matrix - outer * params_.batch_inner.divisor),
                        static_cast<int>(outer)};
      tile -= matrix * params_.per_matrix.divisor;
    }
    const uint32_t group = params_.group_tiles.divide(tile);
    const uint32_t in_group = tile - group * params_.group_tiles.divisor;
    const FastDivisor& rows =
        group == params_.last_group ? params_.last_group_rows : params_.group_rows;
    const uint32_t column = rows.divide(in_group);
    const uint32_t row = group * params_.group_rows.divisor + in_group - column * rows.divisor;
    segment->m = static_cast<int>(split() ? row : row * Config::kCluster + cta_rank_) * kBlockM;
    segment->n = static_cast<int>(column) * Config::kBlockN;
  }

  const Params& params_;
  int cta_rank_;
  uint32_t next_, next_shared_ = 0, end_shared_ = 0;
};

}  // namespace xgemm::cuda::gemm::sm90
