// Large products on Hopper's FP32 cores: TMA brings both operands' tiles, which takes one thread
// instead of a tenth of all issue slots.
#pragma once

#include "cuda/gemm/fp32/sm90/params.h"
#include "cuda/gemm/fp32/thread_tile.cuh"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

using TileTma = TileConfig<kBlockM, kBlockN, 8, 16, 3, 2, false>;

struct SharedStorage {
  struct Stage {
    alignas(128) float a[kTmaBlockK * TileTma::kBlockM];
    alignas(128) float b[kTmaBlockK * TileTma::kBlockN];
  };
  Stage ring[TileTma::kStages];
  uint64_t full[TileTma::kStages];
};

// A tile, or a part of K of one.
struct Unit {
  Work work;
  int part;  // of all parts; negative: the whole tile

  // Whole tiles come first. The others' parts are shorter: they fill what the SMs, of which some
  // are slower than others, would idle in the end.
  __device__ static Unit at(const Params& params, int index) {
    const int splits = params.splits;
    Unit unit;
    unit.part = index - params.whole;
    const int tile = unit.part < 0 ? index : params.whole + unit.part / splits;
    const int per_plane = static_cast<int>(params.tiles_m * params.tiles_n);
    unit.work.place<TileTma>(params, tile % per_plane);
    unit.work.batch = tile / per_plane;
    unit.work.k = unit.part < 0 ? 0 : unit.part % splits * params.k_per_split;
    unit.work.k_end = unit.part < 0 ? params.k : min(unit.work.k + params.k_per_split, params.k);
    return unit;
  }
};

__device__ inline void store(const Params& params, const Unit& unit,
                             const ThreadTile<TileTma>& mine) {
  using Tile = TileTma;
#pragma unroll
  for (int i = 0; i < Tile::kThreadM; ++i) {
    const int row = mine.row + i / 4 * 4 * Tile::kLanesM + i % 4;
#pragma unroll
    for (int j = 0; j < Tile::kThreadN; j += 4) {
      const int column = mine.column + j * Tile::kLanesN;
      const float4 x = {mine.acc[i][j], mine.acc[i][j + 1], mine.acc[i][j + 2], mine.acc[i][j + 3]};
      if (unit.part < 0) {
        store_result4(params, unit.work.batch, x, unit.work.m + row, unit.work.n + column);
      } else {
        float* tile = params.partials + int64_t{unit.part} * (kBlockM * kBlockN);
        *reinterpret_cast<float4*>(tile + row * kBlockN + column) = scale4(1.0f, x);
      }
    }
  }
}

// Brings tile after tile of both operands to the ring. Of one thread.
class Producer {
 public:
  __device__ Producer(const TmaParams& params, const Work& work, SharedStorage& smem)
      : params_(params),
        smem_(smem),
        m_(static_cast<int>(work.m)),
        n_(static_cast<int>(work.n)),
        k_(static_cast<int>(work.k)),
        a_batch_(params.a_batched ? static_cast<int>(work.batch) : 0),
        b_batch_(params.b_batched ? static_cast<int>(work.batch) : 0) {}

  // What lies past the operands is 0.
  __device__ void fetch(int k_tile, int stage) const {
    SharedStorage::Stage& to = smem_.ring[stage];
    uint64_t* full = &smem_.full[stage];
    ptx::mbarrier_arrive_expect_tx(full, sizeof(to.a) + sizeof(to.b));
    const int k = k_ + k_tile * kTmaBlockK;
    ptx::tma_load_3d(to.a, &params_.a, full, m_, k, a_batch_);
    ptx::tma_load_3d(to.b, &params_.b, full, n_, k, b_batch_);
  }

 private:
  const TmaParams& params_;
  SharedStorage& smem_;
  int m_, n_, k_, a_batch_, b_batch_;
};

__global__ void __launch_bounds__(TileTma::kThreads, TileTma::kCtasPerSm)
    gemm_kernel(const __grid_constant__ TmaParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tile = TileTma;
  constexpr int kStages = Tile::kStages, kStageBytes = sizeof(SharedStorage::Stage);
  // Of a tile, this many k are unrolled: with more of them the code of a tile does not stay in the
  // instruction cache, with fewer a warp branches more often, which takes it ten cycles.
  constexpr int kUnroll = 8;
  XGEMM_DYNAMIC_SHARED(char, raw_smem, 128);
  SharedStorage& smem = *reinterpret_cast<SharedStorage*>(raw_smem);
  const Unit unit = Unit::at(params.problem, static_cast<int>(blockIdx.x));
  const int thread = threadIdx.x;
  const Producer producer(params, unit.work, smem);
  const int k_tiles = unit.work.k_tiles(kTmaBlockK);
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) ptx::mbarrier_init(&smem.full[s], 1);
    ptx::fence_mbarrier_init();
    for (int s = 0; s < min(kStages - 1, k_tiles); ++s) producer.fetch(s, s);
  }
  __syncthreads();

  ThreadTile<Tile> mine(thread / 32, thread % 32);
  mine.clear();
  uint32_t a = ptx::smem_address(smem.ring[0].a) + mine.row * 4;
  uint32_t b = ptx::smem_address(smem.ring[0].b) + mine.column * 4;
  int stage = 0;
  uint32_t parity = 0;
  ptx::mbarrier_wait(&smem.full[0], 0);
  mine.load_early(0, a, b, 0);
#pragma unroll 1
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    // To the stage that everybody has left.
    const int ahead = k_tile + kStages - 1;
    if (thread == 0 && ahead < k_tiles) {
      producer.fetch(ahead, stage == 0 ? kStages - 1 : stage - 1);
    }
#pragma unroll 1
    for (int group = 0; group < kTmaBlockK / kUnroll - 1; ++group) {
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        mine.load_early((k + 1) % 2, a, b, k + 1);
        mine.multiply(k % 2);
      }
      a += kUnroll * Tile::kStrideA * 4, b += kUnroll * Tile::kStrideB * 4;
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (k == kUnroll - 1) {
        a -= (kTmaBlockK - kUnroll) * Tile::kStrideA * 4;
        b -= (kTmaBlockK - kUnroll) * Tile::kStrideB * 4;
        if (++stage == kStages) {
          stage = 0, parity ^= 1;
          a -= (kStages - 1) * kStageBytes, b -= (kStages - 1) * kStageBytes;
        } else {
          a += kStageBytes, b += kStageBytes;
        }
        if (k_tile + 1 < k_tiles) ptx::mbarrier_wait(&smem.full[stage], parity);
        __syncthreads();
      }
      mine.load_early((k + 1) % 2, a, b, (k + 1) % kUnroll);
      mine.multiply(k % 2);
    }
  }
  if (params.problem.m == 0) mine.keep_off_columns_banks(ptx::smem_address(raw_smem));  // never
  store(params.problem, unit, mine);
#endif
}

// D's tiles that were split, from their parts, in order: the same bits in every run.
constexpr int kReduceThreads = 256, kReduceRows = kReduceThreads * 4 / kBlockN;

__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ Params params) {
  constexpr int kBlocks = kBlockM / kReduceRows;  // of a tile
  const int tile = static_cast<int>(blockIdx.x) / kBlocks;
  const Unit unit = Unit::at(params, params.whole + tile * params.splits);
  const int row =
      static_cast<int>(blockIdx.x) % kBlocks * kReduceRows + threadIdx.x / (kBlockN / 4);
  const int column = threadIdx.x % (kBlockN / 4) * 4;
  const int64_t d_row = unit.work.m + row, d_column = unit.work.n + column;
  if (d_row >= params.m || d_column >= params.n) return;
  const float* from =
      params.partials + int64_t{unit.part} * (kBlockM * kBlockN) + row * kBlockN + column;
  float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
  for (int split = 0; split < params.splits; ++split) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    from += kBlockM * kBlockN;
  }
  finish_row4(params, unit.work.batch, sum, d_row, d_column);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
