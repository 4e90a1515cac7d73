// Stand-in for the CUDA toolkit's header, which nvcc includes by itself and the emulator's build by
// -include: what kernels use without a header of their own.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <type_traits>

#include "emulator/engine.h"

#define __shared__ _Pragma("GCC error \"shared memory is declared by cuda/shared_memory.h\"")

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}

template <typename T>
T __ldg(const T* pointer) {
  return *pointer;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}
[[noreturn]] inline void __trap() { std::abort(); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned from = selector >> (4 * i);
    result |= (static_cast<unsigned>(bytes >> (8 * (from & 7))) & 0xff) << (8 * i);
  }
  return result;
}

inline void __syncthreads() { xgemm::emulator::sync_threads(); }
inline void __syncwarp(unsigned mask = ~0u) {
  xgemm::emulator::meet_warp<void>("__syncwarp", mask, nullptr, [](void**) {});
}
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace xgemm::emulator {

// Every lane gets source(lane, operand)'s value.
template <typename T, typename Source>
T shuffle(const char* what, unsigned mask, T value, int width, Source source) {
  struct Operands {
    T value, result;
    int lane, from;
  };
  const int lane = current().lane(), first = lane / width * width;
  Operands mine{value, value, lane, source(lane - first)};
  mine.from = mine.from < 0 || mine.from >= width ? lane : mine.from + first;
  meet_warp(what, mask, &mine, [&](Operands** all) {
    for (int i = 0; i < kWarp; ++i) {
      if ((mask >> i & 1) == 0) continue;
      if ((mask >> all[i]->from & 1) == 0) fail("a shuffle from a lane that is not in its mask");
      all[i]->result = all[all[i]->from]->value;
    }
  });
  return mine.result;
}

template <typename T, typename Operation>
T atomic(T* pointer, T value, Operation operation) {
  const T old = *pointer;
  *pointer = operation(old, value);
  return old;
}

}  // namespace xgemm::emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return xgemm::emulator::shuffle("__shfl_sync", mask, value, width,
                                  [&](int) { return source & (width - 1); });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return xgemm::emulator::shuffle("__shfl_xor_sync", mask, value, width,
                                  [&](int lane) { return lane ^ lanes; });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return xgemm::emulator::shuffle("__shfl_up_sync", mask, value, width,
                                  [&](int lane) { return lane - static_cast<int>(delta); });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return xgemm::emulator::shuffle("__shfl_down_sync", mask, value, width,
                                  [&](int lane) { return lane + static_cast<int>(delta); });
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  struct Operands {
    bool predicate;
    unsigned ballot;
  } mine{predicate != 0, 0};
  xgemm::emulator::meet_warp("__ballot_sync", mask, &mine, [&](Operands** all) {
    unsigned ballot = 0;
    for (int i = 0; i < 32; ++i) ballot |= unsigned{(mask >> i & 1) != 0 && all[i]->predicate} << i;
    for (int i = 0; i < 32; ++i) {
      if ((mask >> i & 1) != 0) all[i]->ballot = ballot;
    }
  });
  return mine.ballot;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

template <typename T>
T atomicAdd(T* pointer, std::type_identity_t<T> value) {
  return xgemm::emulator::atomic(pointer, value, std::plus<T>());
}
template <typename T>
T atomicMin(T* pointer, std::type_identity_t<T> value) {
  return xgemm::emulator::atomic(pointer, value, [](T a, T b) { return min(a, b); });
}
template <typename T>
T atomicMax(T* pointer, std::type_identity_t<T> value) {
  return xgemm::emulator::atomic(pointer, value, [](T a, T b) { return max(a, b); });
}

// Host side.
namespace xgemm::emulator {
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   const std::function<void()>& body);
}
template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  return xgemm::emulator::launch(*config, reinterpret_cast<const void*>(kernel),
                                 [&] { kernel(static_cast<Params>(args)...); });
}
