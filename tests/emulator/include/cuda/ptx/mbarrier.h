// csrc/cuda/ptx/mbarrier.h, emulated.
#pragma once

#include "emulator/engine.h"

namespace xgemm::ptx {

inline uint32_t smem_address(const void* pointer) { return emulator::shared_address(pointer); }

inline void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  emulator::mbarrier_init(barrier, arrivals);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  emulator::shared_address(barrier);
  emulator::mbarrier_arrive(barrier, bytes);
}
inline void mbarrier_arrive(uint64_t* barrier) {
  emulator::shared_address(barrier);
  emulator::mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_cluster(uint64_t* barrier, uint32_t cta_rank) {
  emulator::mbarrier_arrive(static_cast<uint64_t*>(emulator::shared_pointer_in(barrier, cta_rank)));
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  emulator::mbarrier_wait(barrier, parity);
}

inline uint32_t cluster_cta_rank() { return emulator::current().block->rank; }
inline uint32_t cluster_count() { return gridDim.x / emulator::current().block->cluster->shape.x; }
inline uint32_t cluster_id() { return blockIdx.x / emulator::current().block->cluster->shape.x; }
inline void cluster_arrive() { emulator::cluster_arrive(); }
inline void cluster_arrive_relaxed() { emulator::cluster_arrive(); }
inline void cluster_wait() { emulator::cluster_wait(); }

inline void fence_proxy_async() {}
inline void named_barrier_sync(int id, int threads) { emulator::sync_named(id, threads); }
inline void named_barrier_sync_apart(int id, int threads) { emulator::sync_named(id, threads); }
inline void named_barrier_arrive(int id, int threads) { emulator::arrive_named(id, threads); }

}  // namespace xgemm::ptx
