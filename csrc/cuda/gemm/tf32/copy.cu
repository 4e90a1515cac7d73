#include <cstdlib>

#include "common/math.h"
#include "cuda/gemm/tf32/copy.h"
#include "cuda/launch.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::tf32 {
namespace {

constexpr int kTile = 32, kThreads = 256, kRowsAtOnce = kThreads / kTile;

struct CopyParams {
  const float* source;
  int64_t rows, k, row_stride, k_stride, batch_stride;  // elements
  float* dst;
  int64_t dst_stride;  // of rows
  int64_t tiles_k, tiles_row;
};

struct TransposeTile {
  float at[kTile][kTile + 1];  // [row][k]
};

// Tiles of 32 x 32 through shared memory: neighbouring threads read neighbours, whichever dimension
// has them, and write along k.
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ CopyParams p, bool along_k) {
  XGEMM_STATIC_SHARED(TransposeTile, tile);
  const int64_t per_batch = p.tiles_k * p.tiles_row;
  const int64_t batch = blockIdx.x / per_batch, in_batch = blockIdx.x % per_batch;
  const int64_t k0 = in_batch % p.tiles_k * kTile, row0 = in_batch / p.tiles_k * kTile;
  const float* source = p.source + batch * p.batch_stride;
  const int fast = threadIdx.x % kTile, slow = threadIdx.x / kTile;
#pragma unroll
  for (int i = slow; i < kTile; i += kRowsAtOnce) {
    const int row = along_k ? i : fast, k = along_k ? fast : i;
    if (row0 + row < p.rows && k0 + k < p.k) {
      tile.at[row][k] = __ldg(source + (row0 + row) * p.row_stride + (k0 + k) * p.k_stride);
    }
  }
  __syncthreads();
  float* dst = p.dst + (batch * p.rows + row0) * p.dst_stride + k0;
#pragma unroll
  for (int row = slow; row < kTile; row += kRowsAtOnce) {
    if (row0 + row < p.rows && k0 + fast < p.k) dst[row * p.dst_stride + fast] = tile.at[row][fast];
  }
}

}  // namespace

Status copy_along_k(const Matrix& from, int64_t k, int64_t batches, float* dst,
                    cudaStream_t stream) {
  CopyParams p{static_cast<const float*>(from.data),
               from.rows,
               k,
               from.row_stride,
               from.k_stride,
               from.batch_stride,
               dst,
               copy_stride(k),
               ceil_div<int64_t>(k, kTile),
               ceil_div<int64_t>(from.rows, kTile)};
  const int64_t blocks = p.tiles_k * p.tiles_row * batches;
  if (blocks > INT32_MAX) return {cudaErrorInvalidValue, "the size of a TF32 operand's copy"};
  const bool along_k = std::abs(from.k_stride) <= std::abs(from.row_stride);
  const Grid grid{
      .blocks = dim3(static_cast<unsigned>(blocks)), .threads = dim3(kThreads), .stream = stream};
  return launch_grid("the copy of a TF32 operand", grid, copy_kernel, p, along_k);
}

}  // namespace xgemm::cuda::gemm::tf32
