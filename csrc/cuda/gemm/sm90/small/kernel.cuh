// Dense GEMM for sm_90a where little is to be done: what counts is how soon it is on its way.
//
// A CTA has one tile. Each of its warps asks for some of the first stages of K, as many as shared
// memory holds, before the CTA's threads have met; two more warps ask for the rest. Warpgroups that
// multiply have 64 rows of the tile each; two of them take the stages of a tile of 64 rows by
// turns.
#pragma once

#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/small/epilogue.cuh"
#include "cuda/gemm/sm90/small/params.h"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::sm90::small {

template <int kBlockM_, int kBlockN_, int kStages_, bool kWholeBoxes>
struct TileConfig {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kStages = kStages_;
  // Of B that are loaded: where it is not along K, boxes of 64.
  static constexpr int kLoadedN = kWholeBoxes ? round_up(kBlockN, 64) : kBlockN;
  static constexpr int kSharers = sharers_of(kBlockM);  // warpgroups that share k
  static constexpr int kWarpgroups = warpgroups_of(kBlockM);
  // Stages that are asked for before the first has come: of a large tile not all, or every SM's
  // first stage waited behind the others' later ones.
  static constexpr int kFirst = kBlockM * kBlockN < 12288 ? kStages : 2;
  // Every warpgroup sees every pass over the ring, or could not tell them by a parity.
  static_assert(kStages % kSharers == 0);
  static constexpr int kThreads = kWarpgroups * kWarpgroup + kLoaders * 32;
};

template <typename T, typename Tile>
struct Stage {
  T a[Tile::kBlockM * kChunkK];
  T b[Tile::kLoadedN * kChunkK];
};

// As many stages as there are chunks of K, up to kStages: less shared memory leaves room for more
// CTAs.
template <typename T, typename Tile>
struct SharedStorage {
  uint64_t full[Tile::kStages], empty[Tile::kStages];
  alignas(16) float bias[Tile::kBlockM > Tile::kBlockN ? Tile::kBlockM : Tile::kBlockN];
  alignas(1024) Stage<T, Tile> stages[Tile::kStages];

  static constexpr int bytes_of(int chunks) {
    using Storage = SharedStorage;
    const int stages = chunks < Tile::kStages ? chunks : Tile::kStages;
    const int used = stages * static_cast<int>(sizeof(Stage<T, Tile>));
    constexpr int kSums = staging_bytes<T, Tile::kBlockN, Tile::kSharers, Tile::kWarpgroups>();
    constexpr int kBefore = sizeof(Storage) - Tile::kStages * sizeof(Stage<T, Tile>);
    return kBefore + (used > kSums ? used : kSums) + 1024;  // + alignment
  }
};

// The same pointer, from lane 0: the compiler then keeps it in uniform registers, and cannot
// compute it anew wherever it is used, which it would else do in every step of a loop.
template <typename S>
__device__ inline S& kept(S& storage) {
  return *reinterpret_cast<S*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(&storage), 0));
}

// Of a CTA: its tile's corner in D, and which product of the batch it is of.
struct Place {
  int m, n;
  BatchPosition batch{0, 0};
};

__device__ inline BatchPosition batch_of(const Params& params) {
  if (!params.batched) return {0, 0};
  const uint32_t outer = params.batch_inner.divide(blockIdx.z);
  return {static_cast<int>(blockIdx.z - outer * params.batch_inner.divisor),
          static_cast<int>(outer)};
}

// By one thread: asks for chunks of K. Of the operand that a cluster of two has in common each CTA
// asks for a half, which both get.
template <typename T, typename Tile, bool kAMn, bool kBMn>
class Loader {
 public:
  __device__ Loader(const Params& params, SharedStorage<T, Tile>& smem, const Place& place)
      : params_(params),
        smem_(smem),
        place_(place),
        rank_(params.cluster.size() > 1 ? static_cast<int>(ptx::cluster_cta_rank()) : 0) {}

  __device__ void load(int stage, int chunk) const {
    auto& to = smem_.stages[stage];
    uint64_t* full = &smem_.full[stage];
    const int k = chunk * kChunkK;
    ptx::mbarrier_arrive_expect_tx(full, stage_bytes());
    if (params_.plain) [[likely]] {  // by itself: the way to the first load is to be short
      const BatchPosition none{0, 0};
      load_operand<Tile::kBlockM, kAMn, 1>(to.a, &params_.a, params_.a_chunked, full, place_.m, k,
                                           none, 0);
      load_operand<Tile::kLoadedN, kBMn, 1>(to.b, &params_.b, params_.b_chunked, full, place_.n, k,
                                            none, 0);
      return;
    }
    load_shared<Tile::kBlockM, kAMn>(to.a, &params_.a, params_.a_chunked, full, place_.m, chunk,
                                     params_.a_batched, params_.cluster.along_n > 1);
    load_shared<Tile::kLoadedN, kBMn>(to.b, &params_.b, params_.b_chunked, full, place_.n, chunk,
                                      params_.b_batched, params_.cluster.along_m > 1);
  }

 private:
  // That are loaded of a stage.
  __device__ uint32_t stage_bytes() const {
    const int rows = kAMn ? Tile::kBlockM : params_.tile_m;
    return (rows + (kBMn ? Tile::kLoadedN : params_.tile_n)) * kChunkK * sizeof(T);
  }

  // All of an operand's chunk or, `halved`, what is this CTA's to load for both.
  template <int kRows, bool kMnMajor>
  __device__ void load_shared(T* tile, const CUtensorMap* map, bool chunked, uint64_t* full,
                              int row, int chunk, const bool (&batched)[2], bool halved) const {
    constexpr uint16_t kBoth = 3;
    const int k = chunk * kChunkK;
    const BatchPosition batch{batched[0] ? place_.batch.inner : 0,
                              batched[1] ? place_.batch.outer : 0};
    if (!halved) {
      load_operand<kRows, kMnMajor, 1>(tile, map, chunked, full, row, k, batch, 0);
      return;
    }
    if constexpr (kMnMajor) {
      // Boxes of 64; where their number is odd, the CTAs take them by turns.
      constexpr int kBoxes = kRows / kSwizzleElements, kHalf = kBoxes % 2 == 0 ? kBoxes / 2 : 1;
      const int step = chunked ? kHalf : 1, turn = kBoxes % 2 == 0 ? 0 : chunk;
#pragma unroll 1
      for (int i = 0; i < kBoxes; i += step) {
        if ((i / kHalf + turn) % 2 != rank_) continue;
        load_box(tile + i * kChunkK * kSwizzleElements, map, full, kBoth,
                 chunked ? 0 : row + i * kSwizzleElements, k,
                 chunked ? row / kSwizzleElements + i : 0, batch);
      }
    } else {
      const int first = rank_ * (kRows / 2);
      load_box(tile + first * kChunkK, map, full, kBoth, k, row + first, 0, batch);
    }
  }

  const Params& params_;
  SharedStorage<T, Tile>& smem_;
  const Place& place_;
  int rank_;
};

// acc = this warpgroup's part of the tile.
template <typename T, typename Tile, bool kAMn, bool kBMn>
__device__ inline void multiply(SharedStorage<T, Tile>& given, int chunks, int warpgroup,
                                int sharers, float (&acc)[Tile::kBlockN / 2]) {
  SharedStorage<T, Tile>& smem = kept(given);
  const int row = Tile::kSharers == 1 ? warpgroup * 64 : 0;
  const uint64_t a_base = operand_descriptor<kAMn>(smem.stages[0].a, row);
  const uint64_t b_base = operand_descriptor<kBMn>(smem.stages[0].b, 0);
  const int first = Tile::kSharers == 1 ? 0 : warpgroup;
  int stage = first, previous = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int chunk = first; chunk < chunks; chunk += Tile::kSharers) {
    ptx::mbarrier_wait(&smem.full[stage], parity);
    ptx::wgmma_fence();
    const int offset = stage * static_cast<int>(sizeof(smem.stages[0]) / 16);
    const uint64_t a = a_base + offset, b = b_base + offset;
#pragma unroll
    for (int k16 = 0; k16 < kChunkK / 16; ++k16) {
      ptx::wgmma<T, kAMn, kBMn>(acc, a + k16 * kDescriptorStepK16<kAMn>,
                                b + k16 * kDescriptorStepK16<kBMn>, chunk > first || k16 > 0);
    }
    ptx::wgmma_commit_group();
    if (chunk > first) {
      ptx::wgmma_wait_group<1>();  // the stage before has been read
      // To all that load into it again; none else waits for it, and may be gone by then.
      const int thread = threadIdx.x % kWarpgroup;
      if (thread < sharers && chunk - Tile::kSharers + Tile::kStages < chunks) {
        ptx::mbarrier_arrive_cluster(&smem.empty[previous], thread);
      }
    }
    previous = stage;
    stage += Tile::kSharers;
    if (stage >= Tile::kStages) stage -= Tile::kStages, parity ^= 1;
  }
  ptx::wgmma_wait_group<0>();
}

// Grid: (columns of tiles, rows of tiles, batch), or rows first.
template <typename T, typename Tile, bool kAMn, bool kBMn>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    small_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem = *reinterpret_cast<SharedStorage<T, Tile>*>(
      raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  constexpr int kStages = Tile::kStages, kWarps = Tile::kThreads / 32;
  constexpr int kStagesOfWarp = (kStages + kWarps - 1) / kWarps;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int chunks = (params.k + kChunkK - 1) / kChunkK;
  const int sharers = params.cluster.size();
  const bool plain = params.plain;
  const uint32_t row = params.rows_first ? blockIdx.x : blockIdx.y;
  const uint32_t column = params.rows_first ? blockIdx.y : blockIdx.x;
  const Place place{static_cast<int>(row) * params.tile_m, static_cast<int>(column) * params.tile_n,
                    plain ? BatchPosition{0, 0} : batch_of(params)};
  const Loader<T, Tile, kAMn, kBMn> loader(params, smem, place);
  // The first loads; of a cluster, as soon as all its barriers stand.
  const auto start = [&] {
    ptx::griddep_wait();
    const int first = min(Tile::kFirst, chunks);
#pragma unroll
    for (int i = 0; i < kStagesOfWarp; ++i) {
      const int stage = warp + i * kWarps;
      if (stage < first) loader.load(stage, stage);
    }
  };
  ptx::griddep_launch_dependents();
  // Every warp has barriers of its own, so that none waits for another before its first loads.
  if (ptx::elect_one()) {
#pragma unroll
    for (int i = 0; i < kStagesOfWarp; ++i) {
      const int stage = warp + i * kWarps;
      if (stage < kStages) ptx::mbarrier_init(&smem.full[stage], 1);
    }
    ptx::fence_mbarrier_init();
    if (sharers == 1) [[likely]]
      start();
#pragma unroll
    for (int i = 0; i < kStagesOfWarp; ++i) {
      const int stage = warp + i * kWarps;
      if (stage < kStages) {
        ptx::mbarrier_init(&smem.empty[stage], Tile::kWarpgroups / Tile::kSharers * sharers);
      }
    }
    ptx::fence_mbarrier_init();
  }
  if (sharers > 1) [[unlikely]] {
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
    if (ptx::elect_one()) start();
  }
  __syncthreads();
  if (warp >= kWarps - kLoaders) {
    // The others, by the last warps: each has the same stages in every pass, or could not tell
    // passes by their parity.
    if (Tile::kFirst < kStages) ptx::mbarrier_wait(&smem.full[0], 0);
    const int begin = warp - (kWarps - kLoaders);
    int stage = begin, base = 0;
    uint32_t parity = 1;
#pragma unroll 1
    while (base + stage < chunks) {
      if (base > 0) ptx::mbarrier_wait(&smem.empty[stage], parity);
      if (base + stage >= Tile::kFirst && ptx::elect_one()) loader.load(stage, base + stage);
      stage += kLoaders;
      if (stage >= kStages) stage = begin, base += kStages, parity ^= 1;
    }
    return;
  }
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
  float acc[Tile::kBlockN / 2];
  multiply<T, Tile, kAMn, kBMn>(smem, chunks, warpgroup, sharers, acc);
  if (Tile::kSharers > 1 && warpgroup >= chunks) {
#pragma unroll
    for (float& x : acc) x = 0;
  }
  ptx::griddep_wait();  // D may be what the kernel before reads
  // All has been read: there is room.
  ptx::named_barrier_sync(kMultipliers, Tile::kWarpgroups * kWarpgroup);
  T* d = static_cast<T*>(params.d) + place.batch.inner * params.d_batch_stride[0] +
         place.batch.outer * params.d_batch_stride[1];
  const Corner corner{place.m, place.n, min(params.m, place.m + params.tile_m),
                      min(params.n, place.n + params.tile_n)};
  if constexpr (Tile::kSharers == 1) {
    store<T, Tile::kBlockN>(params, smem.bias, smem.stages, acc, warpgroup, corner, d);
  } else {
    add_and_store<T, Tile::kBlockN>(params, smem.bias, smem.stages, acc, warpgroup, corner, d);
  }
#endif
}

}  // namespace xgemm::cuda::gemm::sm90::small
