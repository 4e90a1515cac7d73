// Loads of 8 adjacent elements at any alignment, and of those that exist near an edge.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/ld_st.h"

namespace xgemm::cuda::gemm::gemv {

// How the rows of W and X lie: all of them at multiples of 16 bytes, or anyhow.
enum class Access { kAligned, kAny };

// The first `count` elements of v, and zeros.
__device__ inline uint4 keep_first(uint4 v, int count) {
  const auto keep = [count](uint32_t word, int i) {
    return count > 2 * i + 1 ? word : count > 2 * i ? word & 0xffffu : 0u;
  };
  return {keep(v.x, 0), keep(v.y, 1), keep(v.z, 2), keep(v.w, 3)};
}

// The 8 elements of W from `pointer` on, of which the first `count` exist; the others are
// undefined. It reads aligned 16 bytes, and only such as hold an element that exists: no allocation
// ends inside of them.
template <Access kAccess>
__device__ inline uint4 load_w(const uint16_t* pointer, int count) {
  uint4 low = {0, 0, 0, 0};
  if constexpr (kAccess == Access::kAligned) {
    if (count > 0) low = ptx::ld_global_nc_no_allocate(pointer);
    return low;
  }
  const uint32_t shift = reinterpret_cast<uintptr_t>(pointer) & 15;
  const auto* aligned = reinterpret_cast<const uint4*>(pointer - shift / 2);
  uint4 high = {0, 0, 0, 0};
  if (count > 0) low = __ldg(aligned);  // through L1: the neighbour wants the same bytes
  if (count * 2 + static_cast<int>(shift) > 16 && count > 0) high = __ldg(aligned + 1);
  const bool by8 = shift & 8, by4 = shift & 4;
  const uint32_t a0 = by8 ? low.z : low.x, a1 = by8 ? low.w : low.y;
  const uint32_t a2 = by8 ? high.x : low.z, a3 = by8 ? high.y : low.w;
  const uint32_t a4 = by8 ? high.z : high.x, a5 = by8 ? high.w : high.y;
  const uint32_t b0 = by4 ? a1 : a0, b1 = by4 ? a2 : a1, b2 = by4 ? a3 : a2;
  const uint32_t b3 = by4 ? a4 : a3, b4 = by4 ? a5 : a4, bits = (shift & 2) * 8;
  return {__funnelshift_r(b0, b1, bits), __funnelshift_r(b1, b2, bits),
          __funnelshift_r(b2, b3, bits), __funnelshift_r(b3, b4, bits)};
}

// The first `count` of 8 elements that are `stride` apart, and zeros.
__device__ inline uint4 gather(const uint16_t* pointer, int count, int64_t stride) {
  const auto element = [&](int i) -> uint32_t {
    return i < count ? __ldg(pointer + i * stride) : 0;
  };
  const auto pair = [&](int i) { return element(i + 1) << 16 | element(i); };
  return {pair(0), pair(2), pair(4), pair(6)};
}

// 8 elements of X along k, of which the first `count` exist; the others are 0. kWhole: all exist.
template <Access kAccess, bool kWhole>
__device__ inline uint4 load_x(const uint16_t* pointer, int count, bool vectors, int64_t stride) {
  if (kAccess == Access::kAny && !vectors) return gather(pointer, count, stride);
  if constexpr (kWhole) {
    return ptx::ld_global_nc(pointer);
  } else {
    return count > 0 ? keep_first(ptx::ld_global_nc(pointer), count) : uint4{0, 0, 0, 0};
  }
}

template <typename T>
__device__ inline float2 to_float2(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  } else {  // bf16 is the upper half of fp32
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
}

}  // namespace xgemm::cuda::gemm::gemv
