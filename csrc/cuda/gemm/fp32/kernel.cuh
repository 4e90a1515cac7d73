// Matrix products on the FP32 cores: tiles of both operands by k in a ring of shared-memory
// stages, fragments double-buffered in registers, outer products of quads.
//
// The FP32 cores take an instruction of each scheduler every cycle, so whatever is not an FMA costs
// its slot: 6 shared-memory reads for 128 of them here.
#pragma once

#include "cuda/gemm/fp32/epilogue.cuh"
#include "cuda/gemm/fp32/loader.cuh"
#include "cuda/ptx/mbarrier.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::fp32 {

template <typename Tile>
struct SharedStorage {
  struct Stage {
    float a[kBlockK * kTileStride<Tile::kBlockM>];
    float b[kBlockK * kTileStride<Tile::kBlockN>];
  };
  alignas(16) Stage ring[Tile::kStages];
};

// A thread's part of the tile.
template <typename Tile>
class ThreadTile {
 public:
  static constexpr int kM = Tile::kThreadM, kN = Tile::kThreadN;
  float acc[kM][kN] = {};
  int row, column;  // its first ones in the tile; further quads follow kLanes * 4 apart

  __device__ ThreadTile(int warp, int lane) {
    // A lane shares its rows with lanes that differ in bits 1 to 3, and its columns with those that
    // differ in bits 0 and 4: a half-warp's reads of either operand are at most 128 bytes.
    row = warp / Tile::kWarpsN * Tile::kWarpM + (lane / 16 * 2 + lane % 2) * 4;
    column = warp % Tile::kWarpsN * Tile::kWarpN + lane / 2 % kLanesN * 4;
  }

  __device__ void load(int set, const float* a, const float* b, int k) {
    const float* from_a = a + k * kTileStride<Tile::kBlockM> + row;
    const float* from_b = b + k * kTileStride<Tile::kBlockN> + column;
#pragma unroll
    for (int i = 0; i < kM; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(from_a + i * kLanesM);
      a_[set][i] = x.x, a_[set][i + 1] = x.y, a_[set][i + 2] = x.z, a_[set][i + 3] = x.w;
    }
#pragma unroll
    for (int j = 0; j < kN; j += 4) {
      const float4 x = *reinterpret_cast<const float4*>(from_b + j * kLanesN);
      b_[set][j] = x.x, b_[set][j + 1] = x.y, b_[set][j + 2] = x.z, b_[set][j + 3] = x.w;
    }
  }

  // To and fro, so that neighbouring FMAs share an operand: registers have two read ports.
  __device__ void multiply(int set) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int step = 0; step < kM; ++step) {
        const int i = j % 2 == 0 ? step : kM - 1 - step;
        acc[i][j] = fmaf(a_[set][i], b_[set][j], acc[i][j]);
      }
    }
  }

 private:
  float a_[2][kM], b_[2][kN];
};

// What a CTA works on: the tile at (m, n) of a batch, and the part [k, k_end) of K.
struct Work {
  int64_t m, n, batch, k, k_end, plane;

  template <typename Tile>
  __device__ static Work at(const Params& params, int64_t index) {
    Work work;
    const int64_t per_plane = params.tiles_m * params.tiles_n;
    const int64_t plane = index / per_plane;
    // Groups of rows, column by column: CTAs that run at the same time share operands in L2.
    constexpr int64_t kGroupRows = 2048 / Tile::kBlockM;
    const int64_t in_plane = index % per_plane;
    const int64_t first = in_plane / (kGroupRows * params.tiles_n) * kGroupRows;
    const int64_t height = min(params.tiles_m - first, kGroupRows);
    const int64_t in_group = in_plane - first * params.tiles_n;
    work.m = (first + in_group % height) * Tile::kBlockM;
    work.n = in_group / height * Tile::kBlockN;
    work.batch = plane / params.splits;
    const int64_t split = plane % params.splits;
    work.plane = split * params.batches + work.batch;
    work.k = split * params.k_per_split;
    work.k_end = min(work.k + params.k_per_split, params.k);
    return work;
  }
};

__device__ inline void store_row4(const Params& params, const Work& work, float4 sums, int64_t row,
                                  int64_t column) {
  if (row >= params.m || column >= params.n) return;
  if (params.splits > 1) {
    *partial_row4(params, work.plane, row, column) = sums;
  } else {
    finish_row4(params, work.batch, sums, row, column);
  }
}

template <typename Tile>
__device__ inline void store_tile(const Params& params, const Work& work,
                                  const ThreadTile<Tile>& mine) {
#pragma unroll
  for (int i = 0; i < Tile::kThreadM; ++i) {
    const int64_t row = work.m + mine.row + i / 4 * 4 * kLanesM + i % 4;
#pragma unroll
    for (int j = 0; j < Tile::kThreadN; j += 4) {
      const float4 x = {mine.acc[i][j], mine.acc[i][j + 1], mine.acc[i][j + 2], mine.acc[i][j + 3]};
      store_row4(params, work, x, row, work.n + mine.column + j * kLanesN);
    }
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtasPerSm)
    gemm_kernel(const __grid_constant__ Params params) {
  using Storage = SharedStorage<Tile>;
  constexpr int kStages = Tile::kStages, kStageFloats = sizeof(typename Storage::Stage) / 4;
  XGEMM_DYNAMIC_SHARED(char, raw_smem, 16);
  Storage& smem = *reinterpret_cast<Storage*>(raw_smem);
  const Work work = Work::at<Tile>(params, params.first_work + blockIdx.x);
  const int thread = threadIdx.x;
  Loader<Tile::kBlockM, Tile::kThreads> a_loader(params.a,
                                                 batch_offset(params, work.batch, &BatchDim::a),
                                                 {work.m, params.m, work.k, work.k_end}, thread);
  Loader<Tile::kBlockN, Tile::kThreads> b_loader(params.b,
                                                 batch_offset(params, work.batch, &BatchDim::b),
                                                 {work.n, params.n, work.k, work.k_end}, thread);
  ThreadTile<Tile> mine(thread / 32, thread % 32);
  const int k_tiles = ceil_div(static_cast<int>(max(work.k_end - work.k, int64_t{0})), kBlockK);

  // Tile t goes to stage t % kStages. Tiles past the last one are fetched too, as zeros.
  float* const a = smem.ring[0].a;
  float* const b = smem.ring[0].b;
  const uint32_t smem_a = ptx::smem_address(a);
  const uint32_t smem_b = ptx::smem_address(b);
  int read = 0, write = 0;  // offsets of stages
  const auto next = [](int stage) {
    return stage == (kStages - 1) * kStageFloats ? 0 : stage + kStageFloats;
  };
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    a_loader.fetch(smem_a + write * 4);
    b_loader.fetch(smem_b + write * 4);
    ptx::cp_async_commit_group();
    write = next(write);
  }
  ptx::cp_async_wait_group<kStages - 2>();
  __syncthreads();
  mine.load(0, a, b, 0);

#pragma unroll 1
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    a_loader.fetch(smem_a + write * 4);
    b_loader.fetch(smem_b + write * 4);
    ptx::cp_async_commit_group();
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      if (k == kBlockK - 1) {
        write = next(write), read = next(read);
        ptx::cp_async_wait_group<kStages - 2>();
        __syncthreads();
      }
      mine.load((k + 1) % 2, a + read, b + read, (k + 1) % kBlockK);
      mine.multiply(k % 2);
    }
  }
  ptx::cp_async_wait_group<0>();
  store_tile(params, work, mine);
}

}  // namespace xgemm::cuda::gemm::fp32
