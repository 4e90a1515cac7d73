// The general GEMM: CUDA cores, any strides, any alignment, alpha and beta. It takes what no fast
// path fits.
#include "common/math.h"
#include "cuda/gemm/simt/launch.h"
#include "cuda/launch.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/convert.cuh"

namespace xgemm::cuda::gemm::simt {
namespace {

constexpr int kBlockK = 16, kThreads = 256, kPerThread = 4;

// Element offsets of batch `index` into the operands.
struct BatchOffset {
  int64_t a = 0, b = 0, c = 0, d = 0;
  __device__ BatchOffset(const GemmProblem& problem, int64_t index) {
    for (int i = problem.batch_dims - 1; i >= 0; --i) {
      const BatchDim& dim = problem.batch[i];
      const int64_t at = index % dim.size;
      index /= dim.size;
      a += at * dim.a, b += at * dim.b, c += at * dim.c, d += at * dim.d;
    }
  }
};

// Of A and of B, [k][row].
struct Tiles {
  alignas(16) float a[kBlockK][kBlock + 4], b[kBlockK][kBlock + 4];
};

// Copies the [kBlock, kBlockK] tile of a matrix to tile[k][row], as fp32 and 0 outside.
// Neighbouring threads take neighbouring elements of the dimension that is contiguous in memory.
template <typename T>
__device__ void load_tile(float (*tile)[kBlock + 4], const T* data, int64_t row_stride,
                          int64_t k_stride, int64_t row0, int64_t rows, int64_t k0, int64_t k) {
  const bool along_k = k_stride == 1;
#pragma unroll
  for (int i = threadIdx.x; i < kBlock * kBlockK; i += kThreads) {
    const int r = along_k ? i / kBlockK : i % kBlock, c = along_k ? i % kBlockK : i / kBlock;
    const bool inside = row0 + r < rows && k0 + c < k;
    tile[c][r] =
        inside ? static_cast<float>(data[(row0 + r) * row_stride + (k0 + c) * k_stride]) : 0.0f;
  }
}

template <typename T>
__device__ void store_tile(const GemmProblem& p, const BatchOffset& offset,
                           const float (&acc)[kPerThread][kPerThread], int64_t row,
                           int64_t column) {
  const T* c = static_cast<const T*>(p.c.data) + offset.c;
  T* d = static_cast<T*>(p.d) + offset.d;
  for (int i = 0; i < kPerThread; ++i) {
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t r = row + i, n = column + j;
      if (r >= p.m || n >= p.n) continue;
      // alpha 0 means that A B does not count, not even where it is NaN (BLAS).
      float y = p.alpha == 0.0f ? 0.0f : p.alpha * acc[i][j];
      if (p.beta != 0.0f) {
        y += p.beta * static_cast<float>(c[r * p.c.row_stride + n * p.c.col_stride]);
      }
      if (p.bias != nullptr)
        y += static_cast<float>(static_cast<const T*>(p.bias)[n * p.bias_stride]);
      d[r * p.d_row_stride + n * p.d_col_stride] = round_to<T>(activate(p.activation, y));
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    gemm_kernel(const __grid_constant__ GemmProblem p, int64_t tiles_m, int64_t tiles_n,
                int64_t tiles) {
  XGEMM_STATIC_SHARED(Tiles, tile_of);
  const int row = threadIdx.x / 16 * kPerThread, column = threadIdx.x % 16 * kPerThread;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t in_batch = tile % (tiles_m * tiles_n);
    const int64_t m0 = in_batch / tiles_n * kBlock, n0 = in_batch % tiles_n * kBlock;
    const BatchOffset offset(p, tile / (tiles_m * tiles_n));
    const T* a = static_cast<const T*>(p.a.data) + offset.a;
    const T* b = static_cast<const T*>(p.b.data) + offset.b;
    float acc[kPerThread][kPerThread] = {};
    for (int64_t k0 = 0; k0 < p.k; k0 += kBlockK) {
      load_tile(tile_of.a, a, p.a.row_stride, p.a.col_stride, m0, p.m, k0, p.k);
      load_tile(tile_of.b, b, p.b.col_stride, p.b.row_stride, n0, p.n, k0, p.k);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kBlockK; ++k) {
        const float4 x = *reinterpret_cast<const float4*>(&tile_of.a[k][row]);
        const float4 y = *reinterpret_cast<const float4*>(&tile_of.b[k][column]);
        const float xs[] = {x.x, x.y, x.z, x.w}, ys[] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
          for (int j = 0; j < kPerThread; ++j) acc[i][j] += xs[i] * ys[j];
        }
      }
      __syncthreads();
    }
    store_tile<T>(p, offset, acc, m0 + row, n0 + column);
  }
}

}  // namespace

Status launch(const GemmProblem& problem, const Config& config, void*, cudaStream_t stream) {
  const int64_t tiles_m = ceil_div<int64_t>(problem.m, kBlock);
  const int64_t tiles_n = ceil_div<int64_t>(problem.n, kBlock);
  int64_t tiles = tiles_m * tiles_n;
  for (int i = 0; i < problem.batch_dims; ++i) tiles *= problem.batch[i].size;
  const auto kernel = problem.dtype == DType::kF16    ? gemm_kernel<__half>
                      : problem.dtype == DType::kBF16 ? gemm_kernel<__nv_bfloat16>
                                                      : gemm_kernel<float>;
  const Grid grid{.blocks = dim3(config.ctas), .threads = dim3(kThreads), .stream = stream};
  return launch_grid("the general GEMM", grid, kernel, problem, tiles_m, tiles_n, tiles);
}

}  // namespace xgemm::cuda::gemm::simt
