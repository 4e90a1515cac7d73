// The blocks of a cluster bring their accumulators together (sm_90): every column has an owner,
// to whom all send theirs; what it waits for is the bytes themselves, and nobody waits for a fence.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/st_async.h"
#include "cuda/reduce/params.h"
#include "cuda/reduce/problem.h"

namespace xgemm::cuda::reduce {

template <typename Acc>
class ClusterMeeting {
 public:
  // `memory`: cluster_bytes() of shared memory, at the same place in all blocks. A cluster's
  // blocks are the pieces of one tile, and a block's rank is its piece.
  __device__ ClusterMeeting(char* memory, const Params& p, uint32_t columns, uint32_t rank)
      : barrier_(reinterpret_cast<uint64_t*>(memory)),
        inbox_(memory + kBarrierBytes),
        ranks_(p.cluster),
        rank_(rank),
        share_((columns + p.cluster - 1) / p.cluster),
        first_(min(rank * share_, columns)),
        end_(min(first_ + share_, columns)) {}

  // At the start, by all threads: the barrier is ready when the last block has come here.
  __device__ void open() const {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(barrier_, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier_, (end_ - first_) * ranks_ * kBytes);
    }
    ptx::cluster_arrive_relaxed();
  }

  // By all threads, before the first send.
  __device__ void wait_for_all() const { ptx::cluster_wait(); }

  __device__ void send(uint32_t column, const Acc& acc) const {
    const uint32_t owner = column / share_;
    const char* slot = inbox_ + (rank_ * share_ + column - owner * share_) * kBytes;
    const uint32_t remote = ptx::mapa(ptx::smem_address(slot), owner);
    const uint32_t remote_barrier = ptx::mapa(ptx::smem_address(barrier_), owner);
    float words[kBytes / 4] = {};
    memcpy(words, &acc, sizeof(Acc));
    if constexpr (kBytes == 8) {
      ptx::st_async_v2(remote, remote_barrier, words[0], words[1]);
    } else {
      ptx::st_async_v4(remote, remote_barrier, words[0], words[1], words[2], words[3]);
    }
  }

  // The columns that this block owns.
  __device__ uint32_t first() const { return first_; }
  __device__ uint32_t end() const { return end_; }

  // By every thread that reads, before the first.
  __device__ void wait_for_mail() const { ptx::mbarrier_wait(barrier_, 0); }
  __device__ Acc from(uint32_t rank, uint32_t column) const {
    Acc acc;
    memcpy(&acc, inbox_ + (rank * share_ + column - first_) * kBytes, sizeof(Acc));
    return acc;
  }

 private:
  static constexpr uint32_t kBytes = sizeof(Acc) <= 8 ? 8 : 16;
  static constexpr int kBarrierBytes = 16;
  uint64_t* barrier_;
  char* inbox_;  // [ranks][share] of kBytes
  uint32_t ranks_, rank_, share_, first_, end_;
};

}  // namespace xgemm::cuda::reduce
