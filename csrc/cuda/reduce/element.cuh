// Elements of every type as the numbers that are computed with, and back.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/ptx/ld_st.h"
#include "cuda/ptx/ld_streaming.h"
#include "cuda/reduce/params.h"

namespace xgemm::cuda::reduce {

template <typename T>
inline constexpr bool kIsFloat = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16> ||
                                 std::is_same_v<T, float> || std::is_same_v<T, double>;

// The type in which an element is compared and added: every value of T is one of it.
template <typename T>
using Number = std::conditional_t<kIsFloat<T>, std::conditional_t<sizeof(T) == 8, double, float>,
                                  std::conditional_t<sizeof(T) == 8, int64_t, int32_t>>;

template <typename T>
inline constexpr int kVector = 16 / sizeof(T);  // elements of a 16-byte load

// A cell is what is unpacked at once: a word, or the two words of an 8-byte element.
template <typename T>
inline constexpr int kCellWords = sizeof(T) == 8 ? 2 : 1;
template <typename T>
inline constexpr int kCellElements = sizeof(T) == 8 ? 1 : 4 / sizeof(T);
template <typename T>
inline constexpr int kCells = 4 / kCellWords<T>;  // of 16 bytes

template <typename T>
__device__ inline void unpack_cell(const uint32_t* words, Number<T> (&out)[kCellElements<T>]) {
  const uint32_t word = words[0];
  if constexpr (std::is_same_v<T, __half>) {
    __half2 pair;
    memcpy(&pair, &word, sizeof(pair));
    const float2 wide = __half22float2(pair);
    out[0] = wide.x, out[1] = wide.y;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {  // the upper half of fp32
    out[0] = __uint_as_float(word << 16), out[1] = __uint_as_float(word & 0xffff0000u);
  } else if constexpr (sizeof(T) >= 4) {
    memcpy(&out[0], words, sizeof(T));
  } else {
#pragma unroll
    for (int i = 0; i < kCellElements<T>; ++i) {
      out[i] = static_cast<T>(word >> (8 * sizeof(T) * i));
    }
  }
}

// Ops on integers that need no transform leave it out.
template <bool kTransforms>
__device__ inline void transform_words(const BitTransform& t, uint32_t& low, uint32_t& high) {
  if constexpr (kTransforms) {
    low = (low & t.keep_low) ^ t.flip_low;
    high = (high & t.keep_high) ^ t.flip_high;
  }
}

// All elements of 16 bytes.
template <typename T, bool kTransforms>
__device__ inline void unpack_vector(const BitTransform& t, uint4 v, Number<T> (&out)[kVector<T>]) {
  transform_words<kTransforms>(t, v.x, v.y);
  transform_words<kTransforms>(t, v.z, v.w);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int cell = 0; cell < kCells<T>; ++cell) {
    Number<T> part[kCellElements<T>];
    unpack_cell<T>(words + cell * kCellWords<T>, part);
#pragma unroll
    for (int i = 0; i < kCellElements<T>; ++i) out[cell * kCellElements<T> + i] = part[i];
  }
}

// One element's bits, as loaded.
template <typename T>
using Bits =
    std::conditional_t<sizeof(T) == 8, uint2,
                       std::conditional_t<sizeof(T) == 4, uint32_t,
                                          std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;

template <typename T>
__device__ inline Bits<T> load_bits(const T* pointer) {
  return __ldg(reinterpret_cast<const Bits<T>*>(pointer));
}

// The same of elements of 2 and 4 bytes that are read once.
template <typename T>
__device__ inline Bits<T> load_streamed_bits(const T* pointer) {
  return ptx::ld_global_streaming(reinterpret_cast<const Bits<T>*>(pointer));
}

template <typename T>
__device__ inline Bits<T> filler_bits(const Params& p) {
  if constexpr (sizeof(T) == 8) {
    return {p.filler_low, p.filler_high};
  } else {
    return static_cast<Bits<T>>(p.filler_low);
  }
}

template <typename T, bool kTransforms>
__device__ inline Number<T> to_number(const BitTransform& t, Bits<T> bits) {
  uint32_t words[2] = {0, 0};
  if constexpr (sizeof(T) == 8) {
    words[0] = bits.x, words[1] = bits.y;
  } else {
    words[0] = bits;
  }
  transform_words<kTransforms>(t, words[0], words[1]);
  Number<T> numbers[kCellElements<T>];
  unpack_cell<T>(words, numbers);
  return numbers[0];
}

// Rounded to nearest even, once. C is float or double: fp64 units are few, so not all are widened.
template <typename T, typename C>
__device__ inline T round_to(C x) {
  if constexpr (std::is_same_v<T, __half>) {
    if constexpr (sizeof(C) == 4) return __float2half_rn(x);
    return __double2half(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (sizeof(C) == 4) return __float2bfloat16_rn(x);
    return __double2bfloat16(x);
  } else {
    return static_cast<T>(x);
  }
}

// Undoes the flip of a result that is one of the elements.
template <typename T>
__device__ inline T flip_back(const BitTransform& t, T x) {
  if constexpr (sizeof(T) == 8) {
    uint2 bits;
    memcpy(&bits, &x, sizeof(x));
    bits.x ^= t.flip_low, bits.y ^= t.flip_high;
    memcpy(&x, &bits, sizeof(x));
  } else {
    Bits<T> bits;
    memcpy(&bits, &x, sizeof(x));
    bits = static_cast<Bits<T>>(bits ^ t.flip_low);
    memcpy(&x, &bits, sizeof(x));
  }
  return x;
}

}  // namespace xgemm::cuda::reduce
