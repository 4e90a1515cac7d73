// csrc/cuda/ptx/tma.h, emulated.
#pragma once

#include "cuda/ptx/mbarrier.h"
#include "emulator/tensor_map.h"

namespace xgemm::ptx {

inline void prefetch_tensormap(const CUtensorMap* map) { emulator::check_tensor_map(map); }
inline void tma_load_5d(void* dst, const CUtensorMap* map, uint64_t* barrier, uint64_t, int c0,
                        int c1, int c2, int c3, int c4) {
  emulator::tma_load(dst, map, barrier, {c0, c1, c2, c3, c4});
}
inline void tma_load_3d(void* dst, const CUtensorMap* map, uint64_t* barrier, int c0, int c1,
                        int c2) {
  emulator::tma_load(dst, map, barrier, {c0, c1, c2});
}
inline void tma_load_3d(void* dst, const CUtensorMap* map, uint64_t* barrier, uint64_t, int c0,
                        int c1, int c2) {
  emulator::tma_load(dst, map, barrier, {c0, c1, c2});
}
inline void tma_load_multicast_5d(void* dst, const CUtensorMap* map, uint64_t* barrier, uint64_t,
                                  uint16_t cta_mask, int c0, int c1, int c2, int c3, int c4) {
  emulator::tma_load(dst, map, barrier, {c0, c1, c2, c3, c4}, cta_mask);
}
inline void tma_load_multicast_3d(void* dst, const CUtensorMap* map, uint64_t* barrier,
                                  uint16_t cta_mask, int c0, int c1, int c2) {
  emulator::tma_load(dst, map, barrier, {c0, c1, c2}, cta_mask);
}
inline void tma_store_4d(const CUtensorMap* map, const void* src, int c0, int c1, int c2, int c3) {
  emulator::tma_store(map, src, {c0, c1, c2, c3});
}
inline void bulk_commit_group() { emulator::current().stores.commit(); }
template <int kPending>
inline void bulk_wait_group_read() {
  emulator::current().stores.wait(kPending);
}

}  // namespace xgemm::ptx
