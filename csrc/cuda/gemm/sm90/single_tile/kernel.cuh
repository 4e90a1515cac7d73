// Dense GEMM for sm_90a where little is to be done: what counts is how soon it is on its way.
//
// A CTA has one tile. Some warps do nothing but ask for stages of K, each for one operand and in
// order, or the first stage would be there with the last; for the first ones before the CTA's
// threads have met. Warpgroups that multiply have 64 rows of the tile each, or several times 64 of
// a large one; two of them take the stages of a tile of 64 rows by turns. Where K is long several
// CTAs may have a part of it each, whose sums a second launch adds.
#pragma once

#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/single_tile/epilogue.cuh"
#include "cuda/gemm/sm90/single_tile/loaders.cuh"
#include "cuda/gemm/sm90/single_tile/params.h"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/setmaxnreg.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/compiled_apart.cuh"

namespace xgemm::cuda::gemm::sm90::single_tile {

// The same pointer, from lane 0: the compiler then keeps it in uniform registers, and cannot
// compute it anew wherever it is used, which it would else do in every step of a loop.
template <typename S>
__device__ inline S& kept(S& storage) {
  return *reinterpret_cast<S*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(&storage), 0));
}

// acc = this warpgroup's part of the tile.
template <typename T, typename Tile, bool kAMn, bool kBMn>
__device__ inline void multiply(SharedStorage<T, Tile>& given, int chunks, int warpgroup,
                                int sharers, float (&acc)[Tile::kFragments][Tile::kSums]) {
  SharedStorage<T, Tile>& smem = kept(given);
  constexpr int kDescriptorStepRow = kChunkK * static_cast<int>(sizeof(T)) / 16;
  const int row = Tile::kSharers == 1 ? warpgroup * Tile::kFragments * 64 : 0;
  const uint64_t a_base = operand_descriptor<kAMn>(smem.stages[0].a, row);
  const uint64_t b_base = operand_descriptor<kBMn>(smem.stages[0].b, 0);
  const int first = Tile::kSharers == 1 ? 0 : warpgroup;
  // (Not PipelineState: a warpgroup walks over every other stage where two share the k of 64 rows.)
  int stage = first, previous = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int chunk = first; chunk < chunks; chunk += Tile::kSharers) {
    for (auto& full : smem.full) ptx::mbarrier_wait(&full[stage], parity);
    ptx::wgmma_fence();
    const int offset = stage * static_cast<int>(sizeof(smem.stages[0]) / 16);
    const uint64_t a = a_base + offset, b = b_base + offset;
#pragma unroll
    for (int k16 = 0; k16 < kChunkK / 16; ++k16) {
#pragma unroll
      for (int i = 0; i < Tile::kFragments; ++i) {
        // (64 rows along K are 64 lines of shared memory.)
        const uint64_t of_rows = a + i * 64 * kDescriptorStepRow;
        ptx::wgmma<T, kAMn, kBMn>(acc[i], of_rows + k16 * kDescriptorStepK16<kAMn>,
                                  b + k16 * kDescriptorStepK16<kBMn>, chunk > first || k16 > 0);
      }
    }
    ptx::wgmma_commit_group();
    if (chunk > first) {
      ptx::wgmma_wait_group<1>();  // the stage before has been read
      // To all that load into it again; none else waits for it, and may be gone by then.
      const int thread = threadIdx.x % kWarpgroup;
      if (chunk - Tile::kSharers + Tile::kStages < chunks && thread < sharers) {
        ptx::mbarrier_arrive_cluster(&smem.empty[previous], thread);
      }
    }
    previous = stage;
    stage += Tile::kSharers;
    if (stage >= Tile::kStages) stage -= Tile::kStages, parity ^= 1;
  }
  ptx::wgmma_wait_group<0>();
}

// Grid: (columns of tiles, rows of tiles, batch or parts of K), or rows first, or as Raster says.
template <typename T, typename Tile, bool kAMn, bool kBMn>
__global__ void __launch_bounds__(Tile::kLaunched, 1)
    single_tile_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem = *reinterpret_cast<SharedStorage<T, Tile>*>(
      raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int loader = warp - Tile::kWarpgroups * 4;  // below 0: it multiplies
  // From a cold cache every line of instructions and of parameters that is read before the first
  // loads delays them, whichever warp reads it. So these come first, and the other warps wait, but
  // for one that has fetched what the loads need next.
  const bool plain = !kAMn && !kBMn && params.plain;
  const TileIndex tile = tile_index(params);
  if (!has_tile(params, tile)) return;
  const PlainLoader<T, Tile> of_plain(params, smem, tile, loader % kOperands != 0);
  if (plain && warp == 0 && ptx::elect_one()) {
    ptx::prefetch_tensormap(&params.a);
    ptx::prefetch_tensormap(&params.b);
  }
  if (plain && loader >= 0 && loader < Tile::kLoaders && ptx::elect_one()) {
    const int turn = loader / kOperands;
    init_full<Tile>(of_plain, turn);
    load_first<Tile>(of_plain, turn, chunks_of_part(params));
    if (loader == 0) init_empty(smem, 1);
  }
  __syncwarp();
  if (compiled_apart(!plain)) [[unlikely]]
    start<T, Tile, kAMn, kBMn>(params, smem, loader);
  ptx::named_barrier_sync(kStarted, Tile::kLaunched);
  if (loader >= 0) {
    if constexpr (Tile::kMovesRegisters) {
      ptx::setmaxnreg_dec<Tile::kLoaderRegisters>();
      if (loader >= Tile::kLoaders) return;
    }
    if (!ptx::elect_one()) return;
    if (plain) {
      const int turn = loader / kOperands, first = turn + Tile::kFirst * Tile::kLoadersPerOperand;
      load_rest(smem, of_plain, turn, chunks_of_part(params), first, 0);
    }
    if (compiled_apart(!plain)) load<T, Tile, kAMn, kBMn>(params, smem, loader);
    return;
  }
  if constexpr (Tile::kMovesRegisters) ptx::setmaxnreg_inc<Tile::kMultiplierRegisters>();
  ptx::griddep_launch_dependents();
  const int sharers = params.cluster.size();
  const Place place = place_of(params);
  const int chunks = place.chunks;
  if (params.bias != nullptr) [[unlikely]] {
    ptx::griddep_wait();  // it may be what the kernel before writes
    const T* bias = static_cast<const T*>(params.bias);
    const bool of_rows = params.bias_of_rows;
    const int first = of_rows ? place.m : place.n, last = (of_rows ? params.m : params.n) - 1;
    if (const int i = threadIdx.x; i < (of_rows ? Tile::kBlockM : Tile::kBlockN)) {
      smem.bias[i] = static_cast<float>(bias[min(first + i, last) * params.bias_stride]);
    }
  }
  const int warpgroup = warp / 4;
  float acc[Tile::kFragments][Tile::kSums];
  multiply<T, Tile, kAMn, kBMn>(smem, chunks, warpgroup, sharers, acc);
  if (Tile::kSharers > 1 && warpgroup >= chunks) {
#pragma unroll
    for (float& x : acc[0]) x = 0;
  }
  ptx::griddep_wait();  // D may be what the kernel before reads
  // All warps have read the stages that this warpgroup stores into: its own or, of those that share
  // the k of a tile, those of both. The bias is there.
  if (Tile::kSharers > 1 || params.bias != nullptr) {
    ptx::named_barrier_sync(kMultipliers, Tile::kWarpgroups * kWarpgroup);
  } else {
    ptx::named_barrier_sync_apart(kOfWarpgroup + warpgroup, kWarpgroup);
  }
  T* d = static_cast<T*>(params.d) + place.batch.inner * params.d_batch_stride[0] +
         place.batch.outer * params.d_batch_stride[1];
  const Corner corner{place.m, place.n, min(params.m, place.m + params.tile_m),
                      min(params.n, place.n + params.tile_n)};
  if constexpr (Tile::kSharers == 1) {
#pragma unroll
    for (int i = 0; i < Tile::kFragments; ++i) {
      const int row = 64 * (warpgroup * Tile::kFragments + i);
      const Corner at{corner.m + row, corner.n, corner.m_end, corner.n_end};
      store<T, Tile::kBlockN>(params, smem.bias + (params.bias_of_rows ? row : 0),
                              smem.staging(row), acc[i], at, d);
    }
  } else {
    add_and_store<T, Tile::kBlockN>(params, smem.bias, smem.stages, acc[0], warpgroup, corner, d);
  }
#endif
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
