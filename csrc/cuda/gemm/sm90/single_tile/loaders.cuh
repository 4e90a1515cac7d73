// The warps that ask for the operands of a tile, and the stages that they fill.
#pragma once

#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/single_tile/epilogue.cuh"
#include "cuda/gemm/sm90/single_tile/params.h"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

template <int kBlockM_, int kBlockN_, int kStages_, bool kWholeBoxes>
struct TileConfig {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kStages = kStages_;
  // Of B that are loaded: where it is not along K, boxes of 64.
  static constexpr int kLoadedN = kWholeBoxes ? round_up(kBlockN, 64) : kBlockN;
  static constexpr int kSharers = sharers_of(kBlockM);               // warpgroups that share k
  static constexpr int kFragments = fragments_of(kBlockM, kBlockN);  // of 64 rows, a warpgroup's
  static constexpr int kWarpgroups = warpgroups_of(kBlockM, kBlockN);
  static constexpr int kSums = kBlockN / 2;  // of a fragment, a thread's
  // Warps that ask for an operand, by turns: one alone is too slow for stages of few rows.
  static constexpr int kArea = kBlockM * kBlockN;
  static constexpr int kLoadersPerOperand = kArea <= 64 * 64 ? 4 : kArea <= 64 * 144 ? 2 : 1;
  // Stages that each asks for before the CTA's threads have met.
  static constexpr int kFirst = kLoadersPerOperand == 1 ? 2 : 1;
  // Every warpgroup sees every pass over the pipeline, or could not tell them by a parity.
  static_assert(kStages % kSharers == 0);
  static constexpr int kLoaders = kOperands * kLoadersPerOperand;  // warps
  static constexpr int kThreads = kWarpgroups * kWarpgroup + kLoaders * 32;
  // Warpgroups that multiply a large tile take registers from those that load, which must be a
  // whole warpgroup for that: some of its warps have nothing to do.
  static constexpr bool kMovesRegisters = kBlockM == 256;
  static constexpr int kLaunched = kMovesRegisters ? (kWarpgroups + 1) * kWarpgroup : kThreads;
  static constexpr int kLoaderRegisters = 24, kMultiplierRegisters = kWarpgroups == 4 ? 112 : 240;
  static_assert(!kMovesRegisters || kLoaderRegisters + kWarpgroups * kMultiplierRegisters <=
                                        65536 / kLaunched / 8 * 8 * (kWarpgroups + 1));
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
  uint64_t full[kOperands][Tile::kStages], empty[Tile::kStages];
  alignas(16) float bias[Tile::kBlockM > Tile::kBlockN ? Tile::kBlockM : Tile::kBlockN];
  alignas(1024) Stage<T, Tile> stages[Tile::kStages];

  static_assert(Tile::kSharers > 1 || Staging<T>::buffers_of(Tile::kBlockN) <= Tile::kStages);
  static constexpr int bytes_of(int chunks) {
    constexpr int kStageBytes = sizeof(Stage<T, Tile>);
    constexpr int kBefore = sizeof(SharedStorage) - Tile::kStages * kStageBytes;
    constexpr int kNeeded = Tile::kSharers == 1
                                ? Staging<T>::buffers_of(Tile::kBlockN) * kStageBytes
                                : bytes_to_add_and_store<T, Tile::kBlockN>();
    const int used = (chunks < Tile::kStages ? chunks : Tile::kStages) * kStageBytes;
    return kBefore + (used > kNeeded ? used : kNeeded) + 1024;  // + alignment
  }

  // A buffer in each stage, where the rows of A from `row` on lie that one warpgroup alone reads:
  // it may write there as soon as it has read all.
  __device__ Staging<T> staging(int row) {
    return {stages[0].a + row * kChunkK, static_cast<int>(sizeof(stages[0]) / sizeof(T))};
  }
};

// Of a CTA: its tile's corner in D, the chunks of K that it has, and which product of the batch.
struct Place {
  int m, n, first_chunk, chunks;
  BatchPosition batch{0, 0};
};

// `index` in the batch.
__device__ inline BatchPosition batch_of(const Params& params, uint32_t index) {
  if (!params.batched) return {0, 0};
  const uint32_t outer = params.batch_inner.divide(index);
  return {static_cast<int>(index - outer * params.batch_inner.divisor), static_cast<int>(outer)};
}

__device__ inline int chunks_of(const Params& params) { return (params.k + kChunkK - 1) / kChunkK; }

// Of the CTA's tile, in tiles.
struct TileIndex {
  uint32_t row, column;
};
__device__ inline TileIndex tile_index(const Params& params) {
  RasterPlace at{blockIdx.x, blockIdx.y};
  if (params.raster.group > 0) at = place_in(params.raster, blockIdx.x, blockIdx.y, blockIdx.z);
  return params.rows_first ? TileIndex{at.fast, at.slow} : TileIndex{at.slow, at.fast};
}

// False where a raster has fewer tiles than CTAs.
__device__ inline bool has_tile(const Params& params, const TileIndex& tile) {
  return params.raster.group == 0 || (params.rows_first ? tile.column : tile.row) < gridDim.y;
}

// Of a plain product's part of K.
__device__ inline int first_chunk_of_part(const Params& params) {
  const int part = params.raster.group > 0 ? 0 : static_cast<int>(blockIdx.z);
  return part * params.part_chunks + min(part, params.longer_parts);
}
__device__ inline int chunks_of_part(const Params& params) {
  return params.part_chunks + (static_cast<int>(blockIdx.z) < params.longer_parts ? 1 : 0);
}

__device__ inline Place place_of(const Params& params) {
  const TileIndex tile = tile_index(params);
  Place place{static_cast<int>(tile.row) * params.tile_m,
              static_cast<int>(tile.column) * params.tile_n, 0, chunks_of(params)};
  if (params.plain) {
    place.first_chunk = first_chunk_of_part(params);
    place.chunks = chunks_of_part(params);
    return place;
  }
  place.batch = batch_of(params, blockIdx.z);
  return place;
}

// By one thread: asks for chunks of K of A or, kOfB, of B. Of the operand that a cluster has in
// common each CTA asks for a part, which all get.
template <typename T, typename Tile, bool kOfB, bool kMnMajor>
class Loader {
 public:
  __device__ Loader(const Params& params, SharedStorage<T, Tile>& smem, const Place& place)
      : params_(params), smem_(smem), place_(place) {}

  __device__ uint64_t* full(int stage) const { return &smem_.full[kOfB][stage]; }

  __device__ void load(int stage, int chunk) const {
    const int k = (place_.first_chunk + chunk) * kChunkK;
    ptx::mbarrier_arrive_expect_tx(full(stage),
                                   (kMnMajor ? kRows : tile_rows()) * kChunkK * sizeof(T));
    if (!is_shared()) {
      load_operand<kRows, kMnMajor, 1>(to(stage), map(), chunked(), full(stage), policy(), row(), k,
                                       batch(), 0);
    } else {
      load_share(stage, chunk, k);
    }
  }

 private:
  static constexpr int kRows = kOfB ? Tile::kLoadedN : Tile::kBlockM;

  __device__ T* to(int stage) const { return kOfB ? smem_.stages[stage].b : smem_.stages[stage].a; }
  __device__ const CUtensorMap* map() const { return kOfB ? &params_.b : &params_.a; }
  __device__ uint64_t policy() const { return kOfB ? params_.b_policy : params_.a_policy; }
  __device__ bool chunked() const { return kOfB ? params_.b_chunked : params_.a_chunked; }
  __device__ int row() const { return kOfB ? place_.n : place_.m; }
  __device__ int tile_rows() const { return kOfB ? params_.tile_n : params_.tile_m; }
  __device__ bool is_shared() const {
    return (kOfB ? params_.cluster.along_m : params_.cluster.along_n) > 1;
  }
  __device__ BatchPosition batch() const {
    const auto& batched = kOfB ? params_.b_batched : params_.a_batched;
    return {batched[0] ? place_.batch.inner : 0, batched[1] ? place_.batch.outer : 0};
  }

  __device__ void load_share(int stage, int chunk, int k) const {
    constexpr uint16_t kAll = (1 << kCluster) - 1;
    const int rank = static_cast<int>(ptx::cluster_cta_rank());
    if constexpr (kMnMajor) {
      // Boxes of 64, by turns that change from chunk to chunk: their number may not divide.
      constexpr int kBoxes = kRows / kSwizzleElements;
      const int step = chunked() ? chunks_per_load(kRows, kCluster) : 1;
      int owner = chunk;
#pragma unroll 1
      for (int i = 0; i < kBoxes; i += step, ++owner) {
        if (owner % kCluster != rank) continue;
        load_box(to(stage) + i * kChunkK * kSwizzleElements, map(), full(stage), policy(), kAll,
                 chunked() ? 0 : row() + i * kSwizzleElements, k,
                 chunked() ? row() / kSwizzleElements + i : 0, batch());
      }
    } else {
      const int first = rank * params_.share_rows;
      load_box(to(stage) + first * kChunkK, map(), full(stage), policy(), kAll, k, row() + first, 0,
               batch());
    }
  }

  const Params& params_;
  SharedStorage<T, Tile>& smem_;
  const Place& place_;
};

// The same where both operands lie along K and the product is plain: one code for A and B, since
// what is short is fetched fast.
template <typename T, typename Tile>
class PlainLoader {
 public:
  __device__ PlainLoader(const Params& params, SharedStorage<T, Tile>& smem, TileIndex tile,
                         bool of_b)
      : map_(of_b ? &params.b : &params.a),
        policy_(of_b ? params.b_policy : params.a_policy),
        full_(smem.full[of_b]),
        to_(of_b ? smem.stages[0].b : smem.stages[0].a) {
    const int rows = of_b ? params.tile_n : params.tile_m;
    row_ = static_cast<int>(of_b ? tile.column : tile.row) * rows;
    k_ = first_chunk_of_part(params) * kChunkK;
    bytes_ = static_cast<uint32_t>(rows) * kChunkK * sizeof(T);
  }

  __device__ uint64_t* full(int stage) const { return full_ + stage; }

  __device__ void load(int stage, int chunk) const {
    ptx::mbarrier_arrive_expect_tx(full(stage), bytes_);
    ptx::tma_load_5d(to_ + stage * (sizeof(Stage<T, Tile>) / sizeof(T)), map_, full(stage), policy_,
                     k_ + chunk * kChunkK, row_, 0, 0, 0);
  }

 private:
  const CUtensorMap* map_;
  uint64_t policy_;
  uint64_t* full_;
  T* to_;
  int row_, k_;
  uint32_t bytes_;
};

// Of warps that ask for an operand by turns, `turn` is this one's: its stages are the same in every
// pass over the pipeline, or it could not tell passes by their parity. Their barriers, ...
template <typename Tile, typename Loader>
__device__ inline void init_full(const Loader& loader, int turn) {
#pragma unroll
  for (int i = 0; i < Tile::kStages; i += Tile::kLoadersPerOperand) {
    if (Tile::kStages % Tile::kLoadersPerOperand == 0 || turn + i < Tile::kStages)
      ptx::mbarrier_init(loader.full(turn + i), 1);
  }
  ptx::fence_mbarrier_init();
}

// ... the stages that it asks for before the CTA's threads have met, ...
template <typename Tile, typename Loader>
__device__ inline void load_first(const Loader& loader, int turn, int chunks) {
  ptx::griddep_wait();
#pragma unroll
  for (int i = 0; i < Tile::kFirst; ++i) {
    const int stage = turn + i * Tile::kLoadersPerOperand;
    if (stage < chunks) loader.load(stage, stage);
  }
}

// ... or all stages, ...
template <typename Tile, typename Loader>
__device__ inline void load_all_stages(const Loader& loader, int turn, int chunks) {
  ptx::griddep_wait();
#pragma unroll 1
  for (int stage = turn; stage < min(chunks, Tile::kStages); stage += Tile::kLoadersPerOperand) {
    loader.load(stage, stage);
  }
}

// ... and the others, from `stage` of the pass that begins with chunk `base` on.
template <typename T, typename Tile, typename Loader>
__device__ inline void load_rest(SharedStorage<T, Tile>& smem, const Loader& loader, int turn,
                                 int chunks, int stage, int base) {
  uint32_t parity = base == 0 ? 1 : 0;
#pragma unroll 1
  while (base + stage < chunks) {
    if (base > 0) ptx::mbarrier_wait(&smem.empty[stage], parity);
    loader.load(stage, base + stage);
    stage += Tile::kLoadersPerOperand;
    if (stage >= Tile::kStages) stage = turn, base += Tile::kStages, parity ^= 1;
  }
}

// Of the barriers that are not the loaders' own.
template <typename T, typename Tile>
__device__ inline void init_empty(SharedStorage<T, Tile>& smem, int sharers) {
  for (uint64_t& empty : smem.empty) {
    ptx::mbarrier_init(&empty, Tile::kWarpgroups / Tile::kSharers * sharers);
  }
  ptx::fence_mbarrier_init();
}

// Before the CTA's threads meet, where the product is not plain.
template <typename T, typename Tile, bool kAMn, bool kBMn>
__device__ inline void start(const Params& params, SharedStorage<T, Tile>& smem, int loader) {
  const Place place = place_of(params);
  const int sharers = params.cluster.size();
  const int turn = loader / kOperands;
  const auto start_operand = [&](const auto& of_operand) {
    init_full<Tile>(of_operand, turn);
    if (sharers == 1) load_all_stages<Tile>(of_operand, turn, place.chunks);
  };
  if (loader < 0) {
    if (threadIdx.x == 0) init_empty(smem, sharers);
  } else if (loader < Tile::kLoaders && ptx::elect_one()) {
    if (loader % kOperands == 0) {
      start_operand(Loader<T, Tile, false, kAMn>(params, smem, place));
    } else {
      start_operand(Loader<T, Tile, true, kBMn>(params, smem, place));
    }
  }
  __syncwarp();
  if (sharers > 1) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
}

// By one thread of a loader, after that.
template <typename T, typename Tile, bool kAMn, bool kBMn>
__device__ inline void load(const Params& params, SharedStorage<T, Tile>& smem, int loader) {
  const Place place = place_of(params);
  const int turn = loader / kOperands;
  const auto load_operand = [&](const auto& of_operand) {
    if (params.cluster.size() > 1) load_all_stages<Tile>(of_operand, turn, place.chunks);
    load_rest(smem, of_operand, turn, place.chunks, turn, Tile::kStages);
  };
  if (loader % kOperands == 0) {
    load_operand(Loader<T, Tile, false, kAMn>(params, smem, place));
  } else {
    load_operand(Loader<T, Tile, true, kBMn>(params, smem, place));
  }
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
