// Sums over K of which the two CTAs of a cluster have half each: every consumer warpgroup sends its
// namesake in the other CTA the columns that that one will store, and adds what it gets.
#pragma once

#include "cuda/gemm/sm90/persistent/epilogue.cuh"
#include "cuda/gemm/sm90/persistent/params.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/st_async.h"
#include "cuda/tile/accumulators.cuh"

namespace xgemm::cuda::gemm::sm90::persistent {

template <typename T, typename Config>
class ClusterReduction {
  using Epilogue = persistent::Epilogue<T, Config::kBlockN>;
  static constexpr int kBoxes0 = (Epilogue::kBoxes + 1) / 2;  // of rank 0, which has the first
  static constexpr int kVectorsOfBox = Epilogue::kColumns / 8;
  static constexpr int kVectors0 = kBoxes0 * kVectorsOfBox, kVectors = Config::kBlockN / 8;
  static constexpr int kStageVectors = 64 * kBlockK * 2 / 16 / kWarpgroup;
  static_assert(kVectors0 <= Config::kStages * kStageVectors, "they are received where A was");

 public:
  static constexpr int kBoxes = Epilogue::kBoxes;

  // `a`: this warpgroup's rows in stage 0 of A, which it alone reads. `ready` and `received` are
  // its barriers, of one arrival.
  __device__ ClusterReduction(T* a, uint64_t* ready, uint64_t* received, int rank, int consumer,
                              int thread)
      : a_(a),
        ready_(ready),
        received_(received),
        rank_(rank),
        consumer_(consumer),
        thread_(thread) {}

  // Once, after the last wgmma. Of acc, [64, kBlockN], the boxes that this CTA stores are whole
  // then.
  __device__ void add_up(float (&acc)[Config::kBlockN / 2]) const {
    ptx::named_barrier_sync(1 + consumer_, kWarpgroup);  // all warps have read A
    if (thread_ == 0) {
      const int vectors = rank_ == 0 ? kVectors0 : kVectors - kVectors0;
      ptx::mbarrier_arrive_expect_tx(received_, vectors * kWarpgroup * 16);
      ptx::mbarrier_arrive_cluster(ready_, 1 - rank_);
    }
    ptx::mbarrier_wait(ready_, 0);
    if (rank_ == 0) {
      send<kVectors0, kVectors>(acc);
      ptx::mbarrier_wait(received_, 0);
      add<0, kVectors0>(acc);
    } else {
      send<0, kVectors0>(acc);
      ptx::mbarrier_wait(received_, 0);
      add<kVectors0, kVectors>(acc);
    }
    ptx::named_barrier_sync(1 + consumer_, kWarpgroup);  // the boxes are staged there now
  }

  __device__ int first_box() const { return rank_ == 0 ? 0 : kBoxes0; }
  __device__ int end_box() const { return rank_ == 0 ? kBoxes0 : Epilogue::kBoxes; }

 private:
  // 16 bytes of each thread, for 8 columns; `i` counts those that are received.
  __device__ float4* inbox(int i) const {
    return reinterpret_cast<float4*>(a_ + i / kStageVectors * (kBlockM * kBlockK)) +
           i % kStageVectors * kWarpgroup + thread_;
  }

  template <int kFirst, int kEnd>
  __device__ void send(const float (&acc)[Config::kBlockN / 2]) const {
    const uint32_t signal = ptx::mapa(ptx::smem_address(received_), 1 - rank_);
#pragma unroll
    for (int j = kFirst; j < kEnd; ++j) {
      const float* x = acc + 4 * j;
      const uint32_t to = ptx::mapa(ptx::smem_address(inbox(j - kFirst)), 1 - rank_);
      ptx::st_async_v4(to, signal, x[0], x[1], x[2], x[3]);
    }
  }

  template <int kFirst, int kEnd>
  __device__ void add(float (&acc)[Config::kBlockN / 2]) const {
#pragma unroll
    for (int j = kFirst; j < kEnd; ++j) add_quad(acc, j, *inbox(j - kFirst));
  }

  T* a_;
  uint64_t *ready_, *received_;
  int rank_, consumer_, thread_;
};

}  // namespace xgemm::cuda::gemm::sm90::persistent
