// Sums of a part of K, left in global memory by one cluster for another.
#pragma once

#include "cuda/gemm/sm90/persistent/params.h"
#include "cuda/gemm/sm90/persistent/schedule.cuh"
#include "cuda/ptx/gpu_flag.h"
#include "cuda/ptx/mbarrier.h"

namespace xgemm::cuda::gemm::sm90::persistent {

// Of one consumer warpgroup, which exchanges them with its namesakes of other clusters.
template <typename Config>
class StreamKFixup {
  static constexpr int kVectors = Config::kBlockN / 8;  // of a thread's sums

 public:
  __device__ StreamKFixup(const Params& params, int cta_rank, int consumer, int thread)
      : params_(params), cta_rank_(cta_rank), consumer_(consumer), thread_(thread) {}

  __device__ void leave(const float (&acc)[Config::kBlockN / 2], uint32_t cluster) const {
    float4* to = sums(cluster);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      to[j * kWarpgroup] = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
    }
    ptx::named_barrier_sync(1 + consumer_, kWarpgroup);
    if (thread_ == 0) ptx::st_release_gpu(params_.flags + index_of(cluster), params_.nonce);
  }

  // Adds what clusters below `cluster` have of the tile whose k-tiles end at `end`, in the order of
  // k. They had it before anything else, so that it is there by now. The flag is taken down again:
  // in a graph the next launch has the same nonce.
  __device__ void complete(float (&acc)[Config::kBlockN / 2], uint32_t end,
                           uint32_t cluster) const {
    const uint32_t clusters = gridDim.x >> params_.pair;
#pragma unroll 1
    while (cluster > 0 && range_of(params_, cluster, clusters).end < end) {
      --cluster;
      uint64_t* flag = params_.flags + index_of(cluster);
      if (thread_ == 0) {
        while (ptx::ld_acquire_gpu(flag) != params_.nonce) {
        }
        *flag = 0;
      }
      ptx::named_barrier_sync(1 + consumer_, kWarpgroup);
      const float4* from = sums(cluster);
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const float4 x = ptx::ld_global_cg(from + j * kWarpgroup);
        acc[4 * j] += x.x, acc[4 * j + 1] += x.y, acc[4 * j + 2] += x.z, acc[4 * j + 3] += x.w;
      }
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
