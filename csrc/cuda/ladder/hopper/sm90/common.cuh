// What the hopper rungs share: the matrices and their tensor maps, and where the sums of a wgmma
// lie.
#pragma once

#include <cuda_bf16.h>

#include "cuda/ladder/api.h"
#include "cuda/launch.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma_2d.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/shared_memory.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/tensor_map_encoder.h"
#include "cuda/tile/pipeline_state.cuh"

namespace xgemm::cuda::ladder::hopper {

using Element = __nv_bfloat16;

inline constexpr int kWarpgroup = 128;         // threads
inline constexpr int kSwizzleElements = 64;    // a row of a box: 128 bytes
inline constexpr int kMostSmemBytes = 232448;  // of a block: 227 KB

// The operands as a kernel sees them: A and B by their tensor maps, C by its address.
struct Operands {
  CUtensorMap a, b;  // boxes of a tile's rows x 64
  Element* c;        // [m, n]
  int m, n, k;
};

// Of a row-major matrix [rows, columns], for boxes [box_rows, 64] with the 128-byte swizzle.
inline bool encode_map(CUtensorMap* map, const void* data, int rows, int columns, int box_rows) {
  const cuuint64_t extent[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[] = {static_cast<cuuint64_t>(columns) * sizeof(Element)};
  const cuuint32_t box[] = {kSwizzleElements, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const auto encoder = tensor_map_encoder();
  return encoder != nullptr &&
         encoder(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), extent, stride,
                 box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// `rows_a`, `rows_b`: of a box.
inline Status make_operands(const Product& product, int rows_a, int rows_b, Operands* made) {
  made->c = static_cast<Element*>(product.c);
  made->m = product.m, made->n = product.n, made->k = product.k;
  const bool encoded = encode_map(&made->a, product.a, product.m, product.k, rows_a) &&
                       encode_map(&made->b, product.b, product.n, product.k, rows_b);
  return {encoded ? cudaSuccess : cudaErrorInvalidValue, "ladder hopper: making tensor maps"};
}

// Launches `kernel`, which wants more shared memory than a block has unasked.
template <typename... Params, typename... Args>
Status launch_large(const char* where, SharedMemoryLimit& limit, const Grid& grid,
                    void (*kernel)(Params...), const Args&... args) {
  const cudaError_t raised =
      limit.raise(reinterpret_cast<const void*>(kernel), static_cast<int>(grid.shared_bytes));
  if (raised != cudaSuccess) return {raised, "ladder hopper: raising the limit of shared memory"};
  return launch_grid(where, grid, kernel, args...);
}

// Boxes with the 128-byte swizzle begin at multiples of 1024 bytes; dynamic memory need not.
template <typename Shared>
inline constexpr int kSmemBytes = sizeof(Shared) + 1024;

template <typename Shared>
__device__ inline Shared& aligned(uint8_t* raw) {
  return *reinterpret_cast<Shared*>(raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
}

// The thread's warpgroup, from lane 0: the compiler then knows that a warp has only one.
__device__ inline int warpgroup_index() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

// Of a tile [rows, 64] as TMA leaves it: 1024 bytes from 8 rows to the next 8. The 16 elements of
// the next step of k begin 32 bytes further, which are 2 units of a descriptor.
__device__ inline uint64_t descriptor(const Element* tile) {
  return ptx::wgmma_descriptor(tile, 16, 1024);
}
inline constexpr int kStepK16 = 2;

// From the registers of a warpgroup to 64 rows of C, which begin at `c`. Thread t has, of rows
// t / 32 * 16 + t % 32 / 4 and 8 below, two neighbours in each 8 columns.
template <int kCount>
__device__ inline void store_sums(const float (&sums)[kCount], Element* c, int n, int thread) {
  c += int64_t{thread / 32 * 16 + thread % 32 / 4} * n + thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    Element* to = c + i * 2;
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(sums[i], sums[i + 1]);
    *reinterpret_cast<__nv_bfloat162*>(to + int64_t{8} * n) =
        __floats2bfloat162_rn(sums[i + 2], sums[i + 3]);
  }
}

}  // namespace xgemm::cuda::ladder::hopper
