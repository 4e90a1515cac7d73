// csrc/cuda/ptx/tma_2d.h, emulated.
#pragma once

#include "cuda/ptx/mbarrier.h"
#include "emulator/tensor_map.h"

namespace xgemm::ptx {

inline void tma_load_2d(void* dst, const CUtensorMap* map, uint64_t* barrier, int inner,
                        int outer) {
  emulator::tma_load(dst, map, barrier, {inner, outer});
}
inline void tma_load_multicast_2d(void* dst, const CUtensorMap* map, uint64_t* barrier,
                                  uint16_t cta_mask, int inner, int outer) {
  emulator::tma_load(dst, map, barrier, {inner, outer}, cta_mask);
}
inline void tma_store_2d(const CUtensorMap* map, const void* src, int inner, int outer) {
  emulator::tma_store(map, src, {inner, outer});
}

}  // namespace xgemm::ptx
