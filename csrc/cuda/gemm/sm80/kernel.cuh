// Dense GEMM for every GPU from Ampere on: cp.async into a pipeline of shared-memory stages,
// ldmatrix and mma.sync out of it.
#pragma once

#include "cuda/gemm/sm80/epilogue.cuh"
#include "cuda/gemm/sm80/schedule.cuh"
#include "cuda/gemm/sm80/warp_mma.cuh"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::sm80 {

template <typename Tile>
struct SharedStorage {
  struct Stage {
    uint16_t a[Tile::kBlockM * Tile::kBlockK];
    uint16_t b[Tile::kBlockN * Tile::kBlockK];
  };
  Stage stages[Tile::kStages];
  float staging[Tile::kWarpsM * Tile::kWarpsN][Tile::kStagedRows * Tile::kWarpN];  // by warps
};

// No CTA is without a tile.
template <typename T, typename Tile, bool kAMn, bool kBMn, bool kGeneral>
__global__ void __launch_bounds__(Tile::kThreads)
    gemm_kernel(const __grid_constant__ Params params) {
  using LayoutA = TileLayout<Tile::kBlockM, Tile::kBlockK, kAMn>;
  using LayoutB = TileLayout<Tile::kBlockN, Tile::kBlockK, kBMn>;
  using Fetch = Fetcher<Tile, LayoutA, LayoutB, kGeneral>;
  using Mma = WarpMma<T, Tile, LayoutA, LayoutB>;
  using Storage = SharedStorage<Tile>;
  constexpr int kStages = Tile::kStages, kSteps = Tile::kBlockK / 16;
  static_assert(sizeof(Storage::stages) == Fetch::kPipelineBytes);
  static_assert(!kGeneral || kStages >= 4,
                "a tile is flushed from registers two tiles before it is read");
  XGEMM_DYNAMIC_SHARED(char, raw_smem, 128);
  Storage& smem = *reinterpret_cast<Storage*>(raw_smem);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const uint32_t stages = ptx::smem_address(smem.stages);

  uint32_t index = blockIdx.x;
  int left = Work::at<Tile>(params, index).template k_tiles<Tile>();  // to compute
  Fetch fetch(params, stages);
  // Pieces of a fetch behind the products of a tile of k, from the middle of the first k16's to the
  // last ones before the barrier's k16.
  const auto copy_behind = [&](int product) {
    constexpr int kFirst = Mma::kProducts / 2, kCount = (kSteps - 1) * Mma::kProducts - kFirst;
    static_assert(Fetch::kPieces <= kCount, "a piece goes behind a product of its own");
    const int i = product - kFirst;
    if (i < 0 || i >= kCount) return;
    const int piece = i * Fetch::kPieces / kCount;
    if ((i + 1) * Fetch::kPieces / kCount > piece) fetch.copy_piece(piece);
  };
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    fetch.next_work(thread);
    fetch.begin_stage();
#pragma unroll
    for (int i = 0; i < Fetch::kPieces; ++i) fetch.copy_piece(i);
    fetch.end_stage();
    fetch.take(1);
  }
  ptx::cp_async_wait_group<kStages - 2>();
  __syncthreads();

  Mma mma(stages, stages + Fetch::kBytesA, warp, lane);
  uint32_t read = 0;  // byte offset of a stage
  mma.load(0, read, 0);
  while (true) {
    fetch.next_work(thread);
    const int k_tiles = min(left, fetch.left());
    left -= k_tiles;
    fetch.take(k_tiles);
    // At the barrier all warps have read a tile of k, and all their parts of the next one have
    // landed. It and the loop's end also keep the compiler from reading both sets of fragments in
    // one burst.
#pragma unroll 1
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
#pragma unroll
      for (int k16 = 0; k16 < kSteps; ++k16) {
        const int set = k16 % 2;
        if (k16 + 1 < kSteps) {
          mma.load(1 - set, read, k16 + 1);
        } else {
          ptx::cp_async_wait_group<kStages - 2>();
          __syncthreads();
          read = Fetch::next(read);
          mma.load(1 - set, read, 0);
        }
        if (k16 == 0) fetch.begin_stage();
        mma.multiply(set, [&](int i) { copy_behind(k16 * Mma::kProducts + i); });
        if (k16 == kSteps - 2) fetch.end_stage();
      }
    }
    if (left > 0) continue;
    const Work work = Work::at<Tile>(params, index);
    Epilogue<T, Tile::kWarpM, Tile::kWarpN, Tile::kStagedRows> epilogue(params, smem.staging[warp],
                                                                        lane);
    epilogue.store(mma.acc, work.m + warp / Tile::kWarpsN * Tile::kWarpM,
                   work.n + warp % Tile::kWarpsN * Tile::kWarpN, work.batch, work.split);
    index += gridDim.x;
    if (index >= params.tiles) break;
    left = Work::at<Tile>(params, index).template k_tiles<Tile>();
    mma.clear();
  }
  ptx::cp_async_wait_group<0>();
}

}  // namespace xgemm::cuda::gemm::sm80
