// Dense GEMM for every GPU from Ampere on: cp.async into a ring of shared-memory stages, ldmatrix
// and mma.sync out of it.
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
  Stage ring[Tile::kStages];
  float staging[Tile::kWarpsM * Tile::kWarpsN][16 * Tile::kWarpN];  // of the epilogue, by warps
};

// No CTA is without a tile.
template <typename T, typename Tile, bool kAMn, bool kBMn, bool kGeneral>
__global__ void __launch_bounds__(Tile::kThreads)
    gemm_kernel(const __grid_constant__ Params params) {
  using LayoutA = TileLayout<Tile::kBlockM, Tile::kBlockK, kAMn>;
  using LayoutB = TileLayout<Tile::kBlockN, Tile::kBlockK, kBMn>;
  using Fetch = Fetcher<Tile, LayoutA, LayoutB, kGeneral>;
  using Storage = SharedStorage<Tile>;
  constexpr int kStages = Tile::kStages;
  static_assert(sizeof(Storage::ring) == Fetch::kRingBytes);
  XGEMM_DYNAMIC_SHARED(char, raw_smem, 128);
  Storage& smem = *reinterpret_cast<Storage*>(raw_smem);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const uint32_t ring = ptx::smem_address(smem.ring);

  uint32_t index = blockIdx.x;
  int left = Work::at<Tile>(params, index).template k_tiles<Tile>();  // to compute
  Fetch fetch(params, ring);
  const auto piece = [&](int i) { fetch.copy_piece(i); };
  const auto nothing = [](int) {};
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    fetch.next_work(thread);
    fetch.begin_stage();
#pragma unroll
    for (int i = 0; i < Fetch::kPieces; ++i) piece(i);
    fetch.end_stage();
    fetch.take(1);
  }
  ptx::cp_async_wait_group<kStages - 2>();
  __syncthreads();

  WarpMma<T, Tile, LayoutA, LayoutB> mma(ring, ring + Fetch::kBytesA, warp, lane);
  uint32_t read = 0;  // byte offset of a stage
  mma.load(0, read, 0);
  while (true) {
    fetch.next_work(thread);
    const int turns = min(left, fetch.left());
    left -= turns;
    fetch.take(turns);
    // At the barrier all warps have read a tile of k, and all their parts of the next one have
    // landed. It and the loop's end also keep the compiler from reading both sets of fragments in
    // one burst.
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
      mma.load(1, read, 1);
      ptx::cp_async_wait_group<kStages - 3>();
      fetch.begin_stage();
      mma.template multiply<Fetch::kPieces>(0, piece);
      fetch.end_stage();
      __syncthreads();
      read = Fetch::next(read);
      mma.load(0, read, 0);
      mma.template multiply<0>(1, nothing);
    }
    if (left > 0) continue;
    const Work work = Work::at<Tile>(params, index);
    Epilogue<T, Tile::kWarpM, Tile::kWarpN> epilogue(params, smem.staging[warp], lane);
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
