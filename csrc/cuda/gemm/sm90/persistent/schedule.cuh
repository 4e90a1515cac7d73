// Which tiles, and which part of K of them, a cluster takes.
#pragma once

#include "common/math.h"
#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/persistent/params.h"
#include "cuda/tile/stream_k.cuh"

namespace xgemm::cuda::gemm::sm90::persistent {

// What a CTA does at a time: some k-tiles of a tile.
struct Segment {
  int m, n;  // first row, first column
  BatchPosition batch;
  int first, count;  // k-tiles
  uint32_t end;      // of the tile, in the common count of shared k-tiles
};

// The k-tiles that cluster `index` takes of those that are shared out.
__device__ inline StreamKRange range_of(const Params& params, uint32_t index, uint32_t clusters) {
  const uint32_t i = clusters - 1 - index;
  const uint32_t begin = even_range_begin(i, params.share, params.share_extra);
  return {begin, begin + params.share + (i < params.share_extra ? 1 : 0)};
}

// Walks over a CTA's segments, those of its share of the tiles that are shared first and its half
// of a tile last, in groups of rows so that concurrent tiles have operands in common in L2.
template <typename Config>
class Scheduler {
 public:
  __device__ Scheduler(const Params& params, int cta_rank)
      : params_(params), cta_rank_(cta_rank), next_(params.shared_tiles + walker()) {
    if (params.shared_tiles > 0) [[unlikely]] {
      const StreamKRange range = range_of(params, walker(), walkers());
      next_shared_ = range.begin, end_shared_ = range.end;
    }
  }

  // Pairs that share B walk together, other CTAs alone.
  __device__ uint32_t walker() const { return blockIdx.x >> params_.shares_b; }
  __device__ uint32_t walkers() const { return gridDim.x >> params_.shares_b; }

  // K-tiles of all segments; before the first next().
  __device__ int64_t steps() const {
    const uint32_t waves = params_.waves + (walker() < params_.waves_rest ? 1 : 0);
    return static_cast<int64_t>(waves) * params_.k_tiles + (end_shared_ - next_shared_) +
           (blockIdx.x < params_.end - params_.whole_tiles ? half() : 0);
  }

  __device__ bool next(Segment* segment) {
    uint32_t tile;
    if (next_shared_ < end_shared_) [[unlikely]] {
      tile = params_.by_k_tiles.divide(next_shared_);
      segment->end = (tile + 1) * params_.k_tiles;
      segment->first = static_cast<int>(next_shared_ - tile * params_.k_tiles);
      segment->count = static_cast<int>(min(segment->end, end_shared_) - next_shared_);
      next_shared_ += segment->count;
    } else {
      if (next_ >= params_.end) return false;
      const bool is_half = next_ >= params_.whole_tiles;
      tile = is_half ? params_.whole_tiles + blockIdx.x / kPair : next_;
      segment->count = is_half ? half() : params_.k_tiles;
      segment->first = is_half && cta_rank_ > 0 ? params_.k_tiles - segment->count : 0;
      next_ += walkers();
    }
    locate(tile, segment);
    return true;
  }

 private:
  // K-tiles of half a tile, this CTA's.
  __device__ int half() const { return (params_.k_tiles + 1 - cta_rank_) / 2; }

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
    segment->m = static_cast<int>(params_.shares_b ? row * kPair + cta_rank_ : row) * kBlockM;
    segment->n = static_cast<int>(column) * Config::kBlockN;
  }

  const Params& params_;
  int cta_rank_;
  uint32_t next_, next_shared_ = 0, end_shared_ = 0;
};

}  // namespace xgemm::cuda::gemm::sm90::persistent
