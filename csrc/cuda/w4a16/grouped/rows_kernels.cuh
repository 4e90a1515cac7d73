// What goes before and after the product of a mixture of experts: rows in the order that the kernel
// reads, a gate whose halves are not aligned, and the sum over a token's slots.
#pragma once

#include <algorithm>

#include "common/math.h"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "cuda/w4a16/grouped/instances.h"
#include "cuda/w4a16/grouped/overlap.cuh"
#include "cuda/w4a16/grouped/rows.cuh"

namespace xgemm::cuda::w4a16::grouped {

inline constexpr int kRowThreads = 128;

// Of a bucket's bounds the last one that is not beyond `index`: its expert.
__device__ inline int expert_of(const int32_t* bounds, int experts, int index) {
  int low = 0, high = experts;  // bounds[low] <= index, and the result is in [low, high]
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (bounds[middle] <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// A block copies the row of one place in the order after the other.
template <bool kOverlap>
__global__ void __launch_bounds__(kRowThreads) copy_kernel(const __grid_constant__ CopyRows p) {
  wait_for_earlier<kOverlap>();
  for (int place = blockIdx.x; place < p.slots; place += gridDim.x) {
    const int slot = slot_at(p.sorted, p.experts, p.slots, place);
    const int expert = expert_of(p.sorted, p.experts, place);
    if (slot < 0 || expert >= p.experts) continue;
    const auto* x =
        static_cast<const uint16_t*>(p.x) + int64_t{slot / p.row_divisor} * p.x_row_stride;
    auto* to = static_cast<uint16_t*>(p.to) + slot * p.to_row_stride;
    const int32_t* perm = p.perm == nullptr ? nullptr : p.perm + expert * p.k;
    for (int64_t j = threadIdx.x; j < p.to_row_stride; j += kRowThreads) {
      const int64_t channel = j >= p.k ? -1 : (perm == nullptr ? j : int64_t{perm[j]});
      to[j] = channel >= 0 && channel < p.k ? x[channel] : uint16_t{0};
    }
  }
}

template <typename T, bool kOverlap>
__global__ void __launch_bounds__(kRowThreads) gate_kernel(const __grid_constant__ Gate p) {
  wait_for_earlier<kOverlap>();
  const int64_t count = p.slots * p.columns;
  for (int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kRowThreads) {
    const int64_t slot = i / p.columns, column = i % p.columns;
    const T* x = static_cast<const T*>(p.x) + slot * 2 * p.columns + column;
    const float gate = static_cast<float>(x[0]), up = static_cast<float>(x[p.columns]);
    static_cast<T*>(p.y)[i] = round_to<T>(activate(p.activation, gate) * up);
  }
}

__device__ inline float weight_of(const Combine& p, int64_t index) {
  if (p.weights_dtype == DType::kF32) return static_cast<const float*>(p.weights)[index];
  if (p.weights_dtype == DType::kF16) {
    return __half2float(static_cast<const __half*>(p.weights)[index]);
  }
  return __bfloat162float(static_cast<const __nv_bfloat16*>(p.weights)[index]);
}

// A thread has kVector neighbouring columns of a token. The weights are multiplied and added as
// they come: the order of the sum is that of the slots.
template <typename T, int kVector, bool kOverlap>
__global__ void __launch_bounds__(kRowThreads) combine_kernel(const __grid_constant__ Combine p) {
  wait_for_earlier<kOverlap>();
  const int64_t each = ceil_div<int64_t>(p.columns, kVector), count = p.tokens * each;
  for (int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kRowThreads) {
    const int64_t token = i / each, column = i % each * kVector;
    const T* y = static_cast<const T*>(p.y) + token * p.top_k * p.columns + column;
    float sum[kVector] = {};
#pragma unroll 4
    for (int64_t j = 0; j < p.top_k; ++j) {
      alignas(16) T part[kVector];
      if constexpr (kVector * sizeof(T) == 16) {
        *reinterpret_cast<uint4*>(part) = *reinterpret_cast<const uint4*>(y + j * p.columns);
      } else {
        part[0] = y[j * p.columns];
      }
      const float weight = weight_of(p, token * p.top_k + j);
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum[v] += weight * static_cast<float>(part[v]);
    }
    alignas(16) T rounded[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) rounded[v] = round_to<T>(sum[v]);
    T* to = static_cast<T*>(p.result) + token * p.columns + column;
    if constexpr (kVector * sizeof(T) == 16) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(rounded);
    } else {
      to[0] = rounded[0];
    }
  }
}

template <bool kOverlap>
Grid grid_of(int64_t threads, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 1 << 16;
  const int64_t blocks =
      std::clamp<int64_t>(ceil_div<int64_t>(threads, kRowThreads), 1, kMaxBlocks);
  return {.blocks = dim3(static_cast<unsigned>(blocks)),
          .threads = dim3(kRowThreads),
          .stream = stream,
          .overlaps_previous = kOverlap};
}

template <typename T, bool kOverlap>
Status combine_typed(const Combine& p, cudaStream_t stream) {
  constexpr int kVector = 16 / sizeof(T);
  const bool vector = p.columns % kVector == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(p.result) % 16 == 0;
  const char* where = "the sum over a token's experts";
  const int64_t elements = p.tokens * p.columns;
  return vector ? launch_grid(where, grid_of<kOverlap>(elements / kVector, stream),
                              combine_kernel<T, kVector, kOverlap>, p)
                : launch_grid(where, grid_of<kOverlap>(elements, stream),
                              combine_kernel<T, 1, kOverlap>, p);
}

template <bool kOverlap>
Status launch_copy_rows(const CopyRows& p, cudaStream_t stream) {
  return launch_grid("the copy of the experts' rows",
                     grid_of<kOverlap>(int64_t{p.slots} * kRowThreads, stream),
                     copy_kernel<kOverlap>, p);
}

template <bool kOverlap>
Status launch_gate(const Gate& p, cudaStream_t stream) {
  const auto kernel =
      p.dtype == DType::kF16 ? gate_kernel<__half, kOverlap> : gate_kernel<__nv_bfloat16, kOverlap>;
  return launch_grid("the gate of the experts", grid_of<kOverlap>(p.slots * p.columns, stream),
                     kernel, p);
}

template <bool kOverlap>
Status launch_combine(const Combine& p, cudaStream_t stream) {
  switch (p.dtype) {
    case DType::kF16:
      return combine_typed<__half, kOverlap>(p, stream);
    case DType::kBF16:
      return combine_typed<__nv_bfloat16, kOverlap>(p, stream);
    default:
      return combine_typed<float, kOverlap>(p, stream);
  }
}

}  // namespace xgemm::cuda::w4a16::grouped
