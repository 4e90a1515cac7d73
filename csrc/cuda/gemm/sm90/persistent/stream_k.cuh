// Sums of a part of K, left in global memory by one cluster for another.
#pragma once

#include "cuda/gemm/sm90/persistent/params.h"
#include "cuda/gemm/sm90/persistent/schedule.cuh"
#include "cuda/ptx/gpu_flag.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/tile/stream_k.cuh"

namespace xgemm::cuda::gemm::sm90::persistent {

// Of one consumer warpgroup, which exchanges them with its namesakes of other clusters.
template <typename Config>
class StreamKFixup {
  static constexpr int kVectors = Config::kBlockN / 8;  // of a thread's sums

 public:
  __device__ StreamKFixup(const Params& params, int cta_rank, int consumer, int thread)
      : params_(params), cta_rank_(cta_rank), consumer_(consumer), thread_(thread) {}

  __device__ void leave(const float (&acc)[Config::kBlockN / 2], uint32_t cluster) const {
    leave_sums(sums(cluster), kWarpgroup, acc);
    ptx::named_barrier_sync(1 + consumer_, kWarpgroup);
    if (thread_ == 0) ptx::st_release_gpu(params_.flags + index_of(cluster), params_.nonce);
  }

  // Adds what clusters below `cluster` have of the tile whose k-tiles end at `end`, in the order of
  // k.
  __device__ void complete(float (&acc)[Config::kBlockN / 2], uint32_t end,
                           uint32_t cluster) const {
    const uint32_t clusters = gridDim.x >> params_.pair;
#pragma unroll 1
    while (cluster > 0 && range_of(params_, cluster, clusters).end < end) {
      --cluster;
      uint64_t* flag = params_.flags + index_of(cluster);
      if (thread_ == 0) take_down_flag(flag, params_.nonce);
      ptx::named_barrier_sync(1 + consumer_, kWarpgroup);
      add_left_sums(acc, sums(cluster), kWarpgroup);
    }
  }

 private:
  __device__ int64_t index_of(uint32_t cluster) const {
    return ((int64_t{cluster} << params_.pair) + cta_rank_) * kConsumers + consumer_;
  }
  __device__ float4* sums(uint32_t cluster) const {
    return params_.partials + index_of(cluster) * (kVectors * kWarpgroup) + thread_;
  }

  const Params& params_;
  int cta_rank_, consumer_, thread_;
};

}  // namespace xgemm::cuda::gemm::sm90::persistent
