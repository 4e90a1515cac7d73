// fp32 products by mma.sync over TF32 numbers, for every GPU from Ampere on and any strides: the
// loads and tiles of the kernel for the FP32 cores, tensor cores in between.
#pragma once

#include "cuda/gemm/fp32/kernel.cuh"
#include "cuda/gemm/tf32/split.cuh"
#include "cuda/ptx/mma_tf32.h"

namespace xgemm::cuda::gemm::tf32::sm80 {

using fp32::kBlockK;

struct Tile {
  static constexpr int kBlockM = 128, kBlockN = 128, kStages = 3, kThreads = 256;
  static constexpr int kWarpM = 64, kWarpN = 32, kWarpsN = kBlockN / kWarpN;
  // A fragment's lanes read four k of eight rows: 8 apart, they hit all banks.
  static constexpr int kStride = 128 + 8;
};

struct SharedStorage {
  struct Stage {
    float a[kBlockK * Tile::kStride], b[kBlockK * Tile::kStride];
  };
  alignas(16) Stage stages[Tile::kStages];
};

// kThree: three products of parts, else one of what is rounded to TF32.
template <bool kThree>
class WarpTile {
 public:
  static constexpr int kTilesM = Tile::kWarpM / 16, kTilesN = Tile::kWarpN / 8;
  float acc[kTilesM][kTilesN][4] = {};
  int row, column;  // of the warp's part of the tile

  __device__ WarpTile(int warp, int lane)
      : row(warp / Tile::kWarpsN * Tile::kWarpM),
        column(warp % Tile::kWarpsN * Tile::kWarpN),
        offset_(lane % 4 * Tile::kStride + lane / 4) {}

  // 8 k. Tensor cores round their sums towards zero, which would add up over K: with three products
  // each sum of 8 k starts at 0, and is added by the FP32 cores.
  __device__ void multiply(const float* a, const float* b) {
    float a_big[kTilesM][4], a_small[kTilesM][4];
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float x = a[row + i * 16 + e % 2 * 8 + e / 2 * 4 * Tile::kStride + offset_];
        take(x, &a_big[i][e], &a_small[i][e]);
      }
    }
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
      float big[2], small[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        take(b[column + j * 8 + e * 4 * Tile::kStride + offset_], &big[e], &small[e]);
      }
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        if constexpr (kThree) {
          float part[4] = {};
          ptx::mma_m16n8k8_tf32(part, a_small[i], big[0], big[1]);
          ptx::mma_m16n8k8_tf32(part, a_big[i], small[0], small[1]);
          ptx::mma_m16n8k8_tf32(part, a_big[i], big[0], big[1]);
#pragma unroll
          for (int e = 0; e < 4; ++e) acc[i][j][e] += part[e];
        } else {
          ptx::mma_m16n8k8_tf32(acc[i][j], a_big[i], big[0], big[1]);
        }
      }
    }
  }

  // Two lanes exchange halves, so that each has four columns of one row.
  __device__ void store(const fp32::Params& params, const fp32::Work& work, int lane) const {
    const bool odd = lane % 2 != 0;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
        const float (&x)[4] = acc[i][j];
        const float other0 = __shfl_xor_sync(~0u, odd ? x[0] : x[2], 1);
        const float other1 = __shfl_xor_sync(~0u, odd ? x[1] : x[3], 1);
        const float4 quad =
            odd ? float4{other0, other1, x[2], x[3]} : float4{x[0], x[1], other0, other1};
        fp32::store_row4(params, work, quad, work.m + row + i * 16 + lane / 4 + (odd ? 8 : 0),
                         work.n + column + j * 8 + lane % 4 / 2 * 4);
      }
    }
  }

 private:
  __device__ static void take(float x, float* big, float* small) {
    if constexpr (kThree) {
      split(x, big, small);
    } else {
      *big = round_or_nan(x);
    }
  }

  int offset_;
};

template <bool kThree>
__global__ void __launch_bounds__(Tile::kThreads)
    gemm_kernel(const __grid_constant__ fp32::Params params) {
  constexpr int kStageFloats = sizeof(SharedStorage::Stage) / 4;
  XGEMM_DYNAMIC_SHARED(char, raw_smem, 16);
  auto& smem = *reinterpret_cast<SharedStorage*>(raw_smem);
  const fp32::Work work = fp32::Work::at<Tile>(params, params.first_work + blockIdx.x);
  const int thread = threadIdx.x, lane = thread % 32;
  using Loader = fp32::Loader<128, Tile::kThreads, Tile::kStride, false>;
  Loader a_loader(params.a, fp32::batch_offset(params, work.batch, &BatchDim::a),
                  {work.m, params.m, work.k, work.k_end}, thread);
  Loader b_loader(params.b, fp32::batch_offset(params, work.batch, &BatchDim::b),
                  {work.n, params.n, work.k, work.k_end}, thread);
  WarpTile<kThree> mine(thread / 32, lane);
  const int k_tiles = ceil_div(static_cast<int>(max(work.k_end - work.k, int64_t{0})), kBlockK);

  // Tile t goes to stage t % kStages. Tiles past the last one are fetched too, as zeros.
  const float *a = smem.stages[0].a, *b = smem.stages[0].b;
  const uint32_t smem_a = ptx::smem_address(a), smem_b = ptx::smem_address(b);
  int read = 0, write = 0;  // offsets of stages
  const auto next = [](int stage) {
    return stage == (Tile::kStages - 1) * kStageFloats ? 0 : stage + kStageFloats;
  };
  const auto fetch = [&] {
    a_loader.fetch(smem_a + write * 4);
    b_loader.fetch(smem_b + write * 4);
    ptx::cp_async_commit_group();
    write = next(write);
  };
#pragma unroll 1
  for (int s = 0; s < Tile::kStages - 1; ++s) fetch();
#pragma unroll 1
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    ptx::cp_async_wait_group<Tile::kStages - 2>();
    __syncthreads();  // tile k_tile has landed, and tile k_tile - 1 has been read
    fetch();
#pragma unroll
    for (int k = 0; k < kBlockK; k += 8) {
      mine.multiply(a + read + k * Tile::kStride, b + read + k * Tile::kStride);
    }
    read = next(read);
  }
  ptx::cp_async_wait_group<0>();
  mine.store(params, work, lane);
}

}  // namespace xgemm::cuda::gemm::tf32::sm80
