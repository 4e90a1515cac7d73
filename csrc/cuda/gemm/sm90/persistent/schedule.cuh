// Which tiles, and which part of K of them, a cluster takes.
#pragma once

#include "common/math.h"
#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/persistent/params.h"

namespace xgemm::cuda::gemm::sm90::persistent {

// What a CTA does at a time: some k-tiles of a tile.
struct Segment {
  int m, n;  // first row, first column
  BatchPosition batch;
  int first, count;  // k-tiles
};

// Walks over a CTA's segments, its half of a tile last, in groups of rows so that concurrent tiles
// have operands in common in L2.
template <typename Config>
class Scheduler {
 public:
  __device__ Scheduler(const Params& params, int cta_rank)
      : params_(params), cta_rank_(cta_rank), next_(walker()) {}

  // Pairs that share B walk together, other CTAs alone.
  __device__ uint32_t walker() const { return blockIdx.x >> params_.shares_b; }
  __device__ uint32_t walkers() const { return gridDim.x >> params_.shares_b; }

  // K-tiles of all segments; before the first next().
  __device__ int64_t steps() const {
    const uint32_t waves = params_.waves + (walker() < params_.waves_rest ? 1 : 0);
    return static_cast<int64_t>(waves) * params_.k_tiles +
           (blockIdx.x < params_.end - params_.whole_tiles ? half() : 0);
  }

  __device__ bool next(Segment* segment) {
    if (next_ >= params_.end) return false;
    const bool is_half = next_ >= params_.whole_tiles;
    const uint32_t tile = is_half ? params_.whole_tiles + blockIdx.x / kPair : next_;
    segment->count = is_half ? half() : params_.k_tiles;
    segment->first = is_half && cta_rank_ > 0 ? params_.k_tiles - segment->count : 0;
    next_ += walkers();
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
  uint32_t next_;
};

}  // namespace xgemm::cuda::gemm::sm90::persistent
