// csrc/cuda/ptx/ld_st.h, emulated.
#pragma once

#include <cstring>

#include "cuda/ptx/mbarrier.h"

namespace xgemm::ptx {

inline uint4 ld_global_nc(const void* pointer) { return *static_cast<const uint4*>(pointer); }
inline uint4 ld_global_nc_no_allocate(const void* pointer) { return ld_global_nc(pointer); }
inline uint4 ld_global_nc(const void* pointer, uint64_t) { return ld_global_nc(pointer); }
inline uint4 ld_global_nc_no_allocate(const void* pointer, uint64_t) {
  return ld_global_nc(pointer);
}
inline float ld_shared_cluster(const float* pointer, uint32_t cta_rank) {
  return *static_cast<const float*>(emulator::shared_pointer_in(pointer, cta_rank));
}
inline float4 ld_shared(uint32_t smem) {
  return *static_cast<const float4*>(emulator::shared_pointer(smem));
}
inline float4 ld_shared_in_order(uint32_t smem) { return ld_shared(smem); }
inline float2 ld_shared2_in_order(uint32_t smem) {
  return *static_cast<const float2*>(emulator::shared_pointer(smem));
}
inline void st_shared(uint32_t smem, uint4 v) {
  *static_cast<uint4*>(emulator::shared_pointer(smem)) = v;
}

}  // namespace xgemm::ptx
