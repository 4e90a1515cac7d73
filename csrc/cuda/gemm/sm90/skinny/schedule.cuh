// Which tiles a cluster takes, and which part of K each of its CTAs.
#pragma once

#include "common/math.h"
#include "cuda/gemm/sm90/skinny/params.h"
#include "cuda/ptx/mbarrier.h"

namespace xgemm::cuda::gemm::sm90::skinny {

struct TilePosition {
  int wide, narrow, batch;  // first row of W, first of X
};

// Walks over the tiles of a cluster. Those that share rows of W come after each other.
template <int kTileColumns>
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const Params& params)
      : params_(params), next_(ptx::cluster_id()), step_(ptx::cluster_count()) {}

  __device__ bool done() const { return next_ >= params_.tiles; }
  __device__ TilePosition next() {
    uint32_t rest = next_, narrow = 0, batch = 0;
    if (params_.narrow_tiles > 1) {  // most often there is one: no division on the way to the loads
      narrow = next_ % params_.narrow_tiles;
      rest = next_ / params_.narrow_tiles;
    }
    if (params_.batch > 1) {
      batch = rest / params_.wide_tiles;
      rest %= params_.wide_tiles;
    }
    next_ += step_;
    return {static_cast<int>(rest) * params_.rows, static_cast<int>(narrow) * kTileColumns,
            static_cast<int>(batch)};
  }

 private:
  const Params& params_;
  uint32_t next_, step_;
};

// The stages of k that one of the CTAs sharing K has.
struct Share {
  int first, count;
};
template <int kStageK>
__device__ inline Share share_of_k(const Params& params, int rank) {
  const int64_t stages = ceil_div(params.k, kStageK);
  const int first = static_cast<int>(stages * rank >> params.split_shift);
  return {first, static_cast<int>(stages * (rank + 1) >> params.split_shift) - first};
}

// Walks over everything a CTA loads: tiles, and within them its share of k.
template <int kTileColumns, int kStageK>
class Steps {
 public:
  __device__ Steps(const Params& params, Share share) : scheduler_(params), share_(share) {
    if (share_.count > 0) enter();
  }
  __device__ bool done() const { return done_; }
  __device__ const TilePosition& tile() const { return tile_; }
  __device__ int k() const { return (share_.first + step_) * kStageK; }
  __device__ void advance() {
    if (++step_ == share_.count) enter();
  }

 private:
  __device__ void enter() {
    step_ = 0;
    done_ = scheduler_.done();
    if (!done_) tile_ = scheduler_.next();
  }

  TileScheduler<kTileColumns> scheduler_;
  Share share_;
  TilePosition tile_{};
  int step_ = 0;
  bool done_ = true;
};

}  // namespace xgemm::cuda::gemm::sm90::skinny
