// csrc/cuda/ptx/half2.h, emulated.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace xgemm::ptx {

template <typename T>
inline uint32_t fma_x2(uint32_t a, uint32_t b, uint32_t c) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  return std::bit_cast<uint32_t>(
      __hfma2(std::bit_cast<Pair>(a), std::bit_cast<Pair>(b), std::bit_cast<Pair>(c)));
}

inline uint32_t add_f16x2(uint32_t a, uint32_t b) {
  return std::bit_cast<uint32_t>(__hadd2(std::bit_cast<__half2>(a), std::bit_cast<__half2>(b)));
}

}  // namespace xgemm::ptx
