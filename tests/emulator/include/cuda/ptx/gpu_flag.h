// csrc/cuda/ptx/gpu_flag.h, emulated.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace xgemm::ptx {

inline void st_release_gpu(uint64_t* flag, uint64_t value) { *flag = value; }
inline uint64_t ld_acquire_gpu(const uint64_t* flag) { return *flag; }
inline void st_relaxed_gpu(ulonglong2* pointer, ulonglong2 v) { *pointer = v; }
inline ulonglong2 ld_relaxed_gpu(const ulonglong2* pointer) { return *pointer; }
inline float4 ld_global_cg(const float4* pointer) { return *pointer; }

}  // namespace xgemm::ptx
