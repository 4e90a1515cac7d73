// Copies of matrices, row by row, with their columns in another order.
#include <algorithm>

#include "common/math.h"
#include "cuda/launch.h"
#include "cuda/w4a16/api.h"

namespace xgemm::cuda::w4a16 {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMaxBlocks = 1 << 16;  // of a grid's y, which is shorter than its x

// A thread has kVector neighbouring columns of dst, which are one aligned store, and goes down the
// rows: the order is read once.
template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ Gather p) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  if (first >= p.cols) return;
  int64_t column[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const int64_t j = first + v;
    column[v] = j < p.src_cols ? (p.from != nullptr ? p.from[j] : j) : -1;
    if (column[v] >= p.src_cols) column[v] = -1;  // an entry of `from`
  }
  const T* src = static_cast<const T*>(p.src);
  T* dst = static_cast<T*>(p.dst) + first * p.dst_col_stride;
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    alignas(16) T values[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const bool inside = column[v] >= 0 && row < p.src_rows;
      values[v] = inside ? src[row * p.src_row_stride + column[v] * p.src_col_stride] : T{0};
    }
    if constexpr (kVector * sizeof(T) == 16) {
      *reinterpret_cast<uint4*>(dst + row * p.dst_row_stride) =
          *reinterpret_cast<const uint4*>(values);
    } else {
      dst[row * p.dst_row_stride] = values[0];
    }
  }
}

template <typename T>
Status launch_gather(const Gather& p, cudaStream_t stream) {
  constexpr int kVector = 16 / sizeof(T);
  const bool vector = p.dst_col_stride == 1 && p.cols % kVector == 0 &&
                      p.dst_row_stride % kVector == 0 &&
                      reinterpret_cast<uintptr_t>(p.dst) % 16 == 0;
  const int64_t per_block = kThreads * (vector ? kVector : 1);
  const int64_t blocks_x = ceil_div(p.cols, per_block);
  // Enough blocks for every SM, and then rows in turns.
  const int64_t blocks_y = std::clamp<int64_t>(4096 / blocks_x, 1, std::min(p.rows, kMaxBlocks));
  const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks_x), static_cast<unsigned>(blocks_y)),
                  .threads = dim3(kThreads),
                  .stream = stream};
  const char* where = "the copy of a permuted or unaligned matrix";
  return vector ? launch_grid(where, grid, gather_kernel<T, kVector>, p)
                : launch_grid(where, grid, gather_kernel<T, 1>, p);
}

__global__ void __launch_bounds__(kThreads)
    invert_kernel(const int32_t* perm, int64_t k, int32_t* inverse) {
  const int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (j >= k) return;
  const int64_t channel = perm[j];
  if (channel >= 0 && channel < k) inverse[channel] = static_cast<int32_t>(j);
}

}  // namespace

Status gather_columns(const Gather& gather, cudaStream_t stream) {
  if (gather.rows == 0 || gather.cols == 0) return {};
  return gather.item_size == 2 ? launch_gather<uint16_t>(gather, stream)
                               : launch_gather<uint32_t>(gather, stream);
}

Status invert_permutation(const int32_t* perm, int64_t k, int32_t* inverse, cudaStream_t stream) {
  if (k == 0) return {};
  const cudaError_t error =
      cudaMemsetAsync(inverse, 0xff, static_cast<size_t>(k) * sizeof(int32_t), stream);
  if (error != cudaSuccess) return {error, "clearing the inverse of perm"};
  const Grid grid{.blocks = dim3(static_cast<unsigned>(ceil_div<int64_t>(k, kThreads))),
                  .threads = dim3(kThreads),
                  .stream = stream};
  return launch_grid("inverting perm", grid, invert_kernel, perm, k, inverse);
}

}  // namespace xgemm::cuda::w4a16
