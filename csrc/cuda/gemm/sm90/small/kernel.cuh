// Dense GEMM for sm_90a where little is to be done: what counts is how soon it is on its way.
//
// A CTA has one tile. Each of its warps asks for some of the first stages of K, as many as shared
// memory holds, before the CTA's threads have met; one more warp asks for the rest. Two warpgroups
// multiply: they have 64 of 128 rows each, or half of every stage's k.
#pragma once

#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/small/epilogue.cuh"
#include "cuda/gemm/sm90/small/params.h"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::sm90::small {

template <int kBlockM_, int kBlockN_, int kStages_>
struct TileConfig {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kStages = kStages_;
  static constexpr int kSharers = sharers_of(kBlockM);  // warpgroups that share k
  static_assert(kBlockM * kSharers == 128);
};

template <typename T, typename Tile>
struct Stage {
  T a[Tile::kBlockM * kChunkK];
  T b[Tile::kBlockN * kChunkK];
};

// As many stages as there are chunks of K, up to kStages: less shared memory leaves room for more
// CTAs.
template <typename T, typename Tile>
struct SharedStorage {
  uint64_t full[Tile::kStages], empty[Tile::kStages];
  alignas(1024) Stage<T, Tile> stages[Tile::kStages];

  static constexpr int bytes_of(int chunks) {
    using Storage = SharedStorage;
    const int stages = chunks < Tile::kStages ? chunks : Tile::kStages;
    const int used = stages * static_cast<int>(sizeof(Stage<T, Tile>));
    constexpr int kSums = staging_bytes<T, Tile::kBlockN, Tile::kSharers>();
    constexpr int kBefore = sizeof(Storage) - Tile::kStages * sizeof(Stage<T, Tile>);
    return kBefore + (used > kSums ? used : kSums) + 1024;  // + alignment
  }
};

// Of a CTA: its tile's corner in D, and which product of the batch it is of.
struct Place {
  int m, n;
  BatchPosition batch{0, 0};
};

template <typename Tile>
__device__ inline Place place_of(const Params& params) {
  Place place{static_cast<int>(blockIdx.y) * Tile::kBlockM,
              static_cast<int>(blockIdx.x) * Tile::kBlockN};
  if (params.batched) {
    const uint32_t outer = params.batch_inner.divide(blockIdx.z);
    place.batch = {static_cast<int>(blockIdx.z - outer * params.batch_inner.divisor),
                   static_cast<int>(outer)};
  }
  return place;
}

// By one thread: asks for chunk `chunk` of K.
template <typename T, typename Tile, bool kAMn, bool kBMn>
__device__ inline void load(const Params& params, SharedStorage<T, Tile>& smem, const Place& place,
                            int stage, int chunk) {
  uint64_t* full = &smem.full[stage];
  ptx::mbarrier_arrive_expect_tx(full, sizeof(smem.stages[0]));
  const auto batch = [&](const bool (&batched)[2]) -> BatchPosition {
    return {batched[0] ? place.batch.inner : 0, batched[1] ? place.batch.outer : 0};
  };
  load_operand<Tile::kBlockM, kAMn, 1>(smem.stages[stage].a, &params.a, params.a_chunked, full,
                                       place.m, chunk * kChunkK, batch(params.a_batched), 0);
  load_operand<Tile::kBlockN, kBMn, 1>(smem.stages[stage].b, &params.b, params.b_chunked, full,
                                       place.n, chunk * kChunkK, batch(params.b_batched), 0);
}

// acc = this warpgroup's part of the tile.
template <typename T, typename Tile, bool kAMn, bool kBMn>
__device__ inline void multiply(SharedStorage<T, Tile>& smem, int chunks, int warpgroup,
                                float (&acc)[Tile::kBlockN / 2]) {
  constexpr int kSteps = 4 / Tile::kSharers;  // of 16 k, of a warpgroup in a stage
  const int row = Tile::kSharers == 1 ? warpgroup * 64 : 0;
  const int step = Tile::kSharers > 1 ? warpgroup * kSteps : 0;
  const uint64_t a_base =
      operand_descriptor<kAMn>(smem.stages[0].a, row) + step * kDescriptorStepK16<kAMn>;
  const uint64_t b_base =
      operand_descriptor<kBMn>(smem.stages[0].b, 0) + step * kDescriptorStepK16<kBMn>;
  RingState<Tile::kStages> ring;
  int previous = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ptx::mbarrier_wait(&smem.full[ring.stage], ring.parity);
    ptx::wgmma_fence();
    const int offset = ring.stage * static_cast<int>(sizeof(smem.stages[0]) / 16);
    const uint64_t a = a_base + offset, b = b_base + offset;
#pragma unroll
    for (int k16 = 0; k16 < kSteps; ++k16) {
      ptx::wgmma<T, kAMn, kBMn>(acc, a + k16 * kDescriptorStepK16<kAMn>,
                                b + k16 * kDescriptorStepK16<kBMn>, chunk > 0 || k16 > 0);
    }
    ptx::wgmma_commit_group();
    if (chunk > 0) {
      ptx::wgmma_wait_group<1>();  // the stage before has been read
      if (threadIdx.x % kWarpgroup == 0) ptx::mbarrier_arrive(&smem.empty[previous]);
    }
    previous = ring.stage;
    ring.advance();
  }
  ptx::wgmma_wait_group<0>();
}

// Grid: (columns of tiles, rows of tiles, batch).
template <typename T, typename Tile, bool kAMn, bool kBMn>
__global__ void __launch_bounds__(kThreads, 1) small_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem = *reinterpret_cast<SharedStorage<T, Tile>*>(
      raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  constexpr int kStages = Tile::kStages, kWarps = kThreads / 32;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int chunks = (params.k + kChunkK - 1) / kChunkK;
  const Place place = place_of<Tile>(params);
  ptx::griddep_launch_dependents();
  if (threadIdx.x % 32 == 0) {
    // Every warp its own barriers, so that none waits for another before its first loads.
    for (int stage = warp; stage < kStages; stage += kWarps) {
      ptx::mbarrier_init(&smem.full[stage], 1);
      ptx::mbarrier_init(&smem.empty[stage], 2);
    }
    ptx::fence_mbarrier_init();
    ptx::griddep_wait();
    for (int stage = warp; stage < min(kStages, chunks); stage += kWarps) {
      load<T, Tile, kAMn, kBMn>(params, smem, place, stage, stage);
    }
  }
  __syncthreads();
  if (warp == kWarps - 1) {
    if (threadIdx.x % 32 != 0) return;
    RingState<kStages> ring;
#pragma unroll 1
    for (int chunk = kStages; chunk < chunks; ++chunk, ring.advance()) {
      ptx::mbarrier_wait(&smem.empty[ring.stage], ring.parity);
      load<T, Tile, kAMn, kBMn>(params, smem, place, ring.stage, chunk);
    }
    return;
  }
  const int warpgroup = warp / 4;
  float acc[Tile::kBlockN / 2];
  multiply<T, Tile, kAMn, kBMn>(smem, chunks, warpgroup, acc);
  ptx::griddep_wait();  // the bias may be what the kernel before writes, or D what it reads
  ptx::named_barrier_sync(kMultipliers, 256);  // all has been read: there is room
  T* d = static_cast<T*>(params.d) + place.batch.inner * params.d_batch_stride[0] +
         place.batch.outer * params.d_batch_stride[1];
  if constexpr (Tile::kSharers == 1) {
    store<T, Tile::kBlockN>(params, smem.stages, acc, warpgroup, place.m + warpgroup * 64, place.n,
                            d);
  } else {
    add_and_store<T, Tile::kBlockN>(params, smem.stages, acc, warpgroup, place.m, place.n, d);
  }
#endif
}

}  // namespace xgemm::cuda::gemm::sm90::small
