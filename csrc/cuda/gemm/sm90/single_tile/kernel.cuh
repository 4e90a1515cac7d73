// Dense GEMM for sm_90a where little is to be done: what counts is how soon it is on its way.
//
// A CTA has one tile. Some warps do nothing but ask for stages of K, each for one operand and in
// order, or the first stage would be there with the last; for the first ones before the CTA's
// threads have met. Warpgroups that multiply have 64 rows of the tile each, or several times 64 of
// a large one; two of them take the stages of a tile of 64 rows by turns. Where K is long two CTAs
// of a cluster may have half of it each, or more CTAs a part of it, whose sums a second launch
// adds.
#pragma once

#include "cuda/gemm/sm90/operand.cuh"
#include "cuda/gemm/sm90/single_tile/epilogue.cuh"
#include "cuda/gemm/sm90/single_tile/params.h"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/setmaxnreg.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/cluster_reduction.cuh"
#include "cuda/tile/compiled_apart.cuh"

namespace xgemm::cuda::gemm::sm90::single_tile {

template <int kBlockM_, int kBlockN_, int kStages_, bool kWholeBoxes>
struct TileConfig {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kStages = kStages_;
  // Of B that are loaded: where it is not along K, boxes of 64.
  static constexpr int kLoadedN = kWholeBoxes ? round_up(kBlockN, 64) : kBlockN;
  static constexpr int kSharers = sharers_of(kBlockM);               // warpgroups that share k
  static constexpr int kFragments = fragments_of(kBlockM, kBlockN);  // of 64 rows, a warpgroup's
  static constexpr int kWarpgroups = warpgroups_of(kBlockM, kBlockN);
  static constexpr bool kSplitsColumns = splits_columns(kBlockM, kBlockN);
  static constexpr int kColumns = kSplitsColumns ? kBlockN / 2 : kBlockN;  // a warpgroup's
  static constexpr int kSums = kColumns / 2;  // of a fragment, a thread's
  static constexpr bool kHalves = takes_halves(kBlockM, kBlockN);
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
  static constexpr bool kMovesRegisters = kBlockM == 256 || kSplitsColumns;
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
  uint64_t room, received;  // of sums from the CTA that has the other half of K
  alignas(16) float bias[Tile::kBlockM > Tile::kBlockN ? Tile::kBlockM : Tile::kBlockN];
  alignas(1024) Stage<T, Tile> stages[Tile::kStages];

  static_assert(Tile::kSharers > 1 || Staging<T>::buffers_of(Tile::kColumns) <= Tile::kStages);
  static constexpr int bytes_of(int chunks) {
    constexpr int kStageBytes = sizeof(Stage<T, Tile>);
    constexpr int kBefore = sizeof(SharedStorage) - Tile::kStages * kStageBytes;
    constexpr int kNeeded = Tile::kSharers == 1
                                ? Staging<T>::buffers_of(Tile::kColumns) * kStageBytes
                                : bytes_to_add_and_store<T, Tile::kColumns>();
    const int used = (chunks < Tile::kStages ? chunks : Tile::kStages) * kStageBytes;
    return kBefore + (used > kNeeded ? used : kNeeded) + 1024;  // + alignment
  }

  // A buffer in each stage, where lie `rows` or, where warpgroups split the columns, `columns` that
  // one warpgroup alone reads: it may write there as soon as it has read all.
  __device__ Staging<T> staging(int rows, int columns) {
    return {(Tile::kSplitsColumns ? stages[0].b + columns * kChunkK : stages[0].a + rows * kChunkK),
            static_cast<int>(sizeof(stages[0]) / sizeof(T))};
  }
};

// The same pointer, from lane 0: the compiler then keeps it in uniform registers, and cannot
// compute it anew wherever it is used, which it would else do in every step of a loop.
template <typename S>
__device__ inline S& kept(S& storage) {
  return *reinterpret_cast<S*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(&storage), 0));
}

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

// Of a plain product's part of K.
__device__ inline int first_chunk_of_part(const Params& params) {
  const int part = static_cast<int>(blockIdx.z);
  return part * params.part_chunks + min(part, params.longer_parts);
}
__device__ inline int chunks_of_part(const Params& params) {
  return params.part_chunks + (static_cast<int>(blockIdx.z) < params.longer_parts ? 1 : 0);
}

__device__ inline Place place_of(const Params& params) {
  const uint32_t row = params.rows_first ? blockIdx.x : blockIdx.y;
  const uint32_t column = params.rows_first ? blockIdx.y : blockIdx.x;
  Place place{static_cast<int>(row) * params.tile_m, static_cast<int>(column) * params.tile_n, 0,
              chunks_of(params)};
  if (params.plain) {
    place.first_chunk = first_chunk_of_part(params);
    place.chunks = chunks_of_part(params);
    return place;
  }
  uint32_t index = blockIdx.z;
  if (params.halves) {
    const int first = (place.chunks + 1) / 2;
    if (index % 2 != 0) place.first_chunk = first;
    place.chunks = index % 2 != 0 ? place.chunks - first : first;
    index /= 2;
  }
  place.batch = batch_of(params, index);
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
    if (sharers() == 1) {
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
  __device__ int sharers() const {
    return kOfB ? params_.cluster.along_m : params_.cluster.along_n;
  }
  __device__ BatchPosition batch() const {
    const auto& batched = kOfB ? params_.b_batched : params_.a_batched;
    return {batched[0] ? place_.batch.inner : 0, batched[1] ? place_.batch.outer : 0};
  }

  __device__ void load_share(int stage, int chunk, int k) const {
    // (Of a cluster of both halves of K the first CTAs have the first.)
    const int cta = static_cast<int>(ptx::cluster_cta_rank()), rank = cta & (sharers() - 1);
    const auto all = static_cast<uint16_t>(((1 << sharers()) - 1) << (cta - rank));
    if constexpr (kMnMajor) {
      // Boxes of 64, by turns that change from chunk to chunk: their number may not divide.
      constexpr int kBoxes = kRows / kSwizzleElements;
      const int step = chunked() ? chunks_per_load(kRows, sharers()) : 1;
      int owner = chunk;
#pragma unroll 1
      for (int i = 0; i < kBoxes; i += step, ++owner) {
        if ((owner & (sharers() - 1)) != rank) continue;
        load_box(to(stage) + i * kChunkK * kSwizzleElements, map(), full(stage), policy(), all,
                 chunked() ? 0 : row() + i * kSwizzleElements, k,
                 chunked() ? row() / kSwizzleElements + i : 0, batch());
      }
    } else {
      const int first = rank * params_.share_rows;
      load_box(to(stage) + first * kChunkK, map(), full(stage), policy(), all, k, row() + first, 0,
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
  __device__ PlainLoader(const Params& params, SharedStorage<T, Tile>& smem, bool of_b)
      : map_(of_b ? &params.b : &params.a),
        policy_(of_b ? params.b_policy : params.a_policy),
        full_(smem.full[of_b]),
        to_(of_b ? smem.stages[0].b : smem.stages[0].a) {
    const uint32_t tile = of_b == params.rows_first ? blockIdx.y : blockIdx.x;
    const int rows = of_b ? params.tile_n : params.tile_m;
    row_ = static_cast<int>(tile) * rows;
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
  const bool halves = Tile::kHalves && params.halves;
  const int turn = loader / kOperands;
  const auto start_operand = [&](const auto& of_operand) {
    init_full<Tile>(of_operand, turn);
    if (sharers == 1) load_all_stages<Tile>(of_operand, turn, place.chunks);
  };
  if (loader < 0) {
    if (threadIdx.x == 0) {
      if (halves) {
        ptx::mbarrier_init(&smem.room, Tile::kWarpgroups);
        ptx::mbarrier_init(&smem.received, 1);
      }
      init_empty(smem, sharers);
    }
  } else if (loader < Tile::kLoaders && ptx::elect_one()) {
    if (loader % kOperands == 0) {
      start_operand(Loader<T, Tile, false, kAMn>(params, smem, place));
    } else {
      start_operand(Loader<T, Tile, true, kBMn>(params, smem, place));
    }
  }
  __syncwarp();
  if (sharers > 1 || halves) {
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

// Two CTAs of a cluster have half of K each, and each finishes one of the tile's two warpgroups'
// rows: it gets the other's sums of them in a stage that nobody reads any more.
template <typename T, typename Tile>
class Halves {
 public:
  // `chunks`: of this half.
  __device__ Halves(int chunks, int sharers, bool exist) : chunks_(chunks) {
    if (!Tile::kHalves || !exist) return;
    const int cta = static_cast<int>(ptx::cluster_cta_rank());
    half_ = cta >= sharers ? 1 : 0;
    first_cta = half_ * sharers;
    other_cta = cta ^ sharers;
    free_after = chunks - Tile::kStages + 1;
  }

  int first_cta = 0;    // of those that have this half of K
  int other_cta = 0;    // that has the other half of this tile
  int free_after = -1;  // the chunk after the one whose stage is for mail

  __device__ bool finishes(int warpgroup) const { return warpgroup == half_; }

  // Sends acc to the CTA that finishes these rows or, here, adds what it sends.
  __device__ void add(SharedStorage<T, Tile>& smem, int chunks_of_both, int warpgroup,
                      float (&acc)[Tile::kSums]) const {
    const int thread = threadIdx.x % kWarpgroup;
    if (!finishes(warpgroup)) {
      const float4* theirs = mail(smem, chunks_of_both - chunks_) + thread;
      const uint32_t to = ptx::mapa(ptx::smem_address(theirs), other_cta);
      const uint32_t signal = ptx::mapa(ptx::smem_address(&smem.received), other_cta);
      ptx::mbarrier_wait(&smem.room, 0);
      send_quads<0, Tile::kBlockN / 8>(to, kWarpgroup * sizeof(float4), signal, acc);
      return;
    }
    if (thread == 0) ptx::mbarrier_arrive_expect_tx(&smem.received, 64 * Tile::kBlockN * 4);
    ptx::mbarrier_wait(&smem.received, 0);
    add_received_quads<0, Tile::kBlockN / 8>(acc, mail(smem, chunks_) + thread, kWarpgroup);
  }

 private:
  static_assert(!Tile::kHalves || 64 * Tile::kBlockN * 4 <= sizeof(Stage<T, Tile>));

  // In the stage that the last pass over the pipeline of so many chunks reads first.
  __device__ static float4* mail(SharedStorage<T, Tile>& smem, int chunks) {
    return reinterpret_cast<float4*>(&smem.stages[chunks % Tile::kStages]);
  }

  int chunks_, half_ = 0;
};

// acc = this warpgroup's part of the tile.
template <typename T, typename Tile, bool kAMn, bool kBMn>
__device__ inline void multiply(SharedStorage<T, Tile>& given, int chunks, int warpgroup,
                                int sharers, const Halves<T, Tile>& halves,
                                float (&acc)[Tile::kFragments][Tile::kSums]) {
  SharedStorage<T, Tile>& smem = kept(given);
  constexpr bool kSplitsRows = Tile::kSharers == 1 && !Tile::kSplitsColumns;
  constexpr int kDescriptorStepRow = kChunkK * static_cast<int>(sizeof(T)) / 16;
  const int row = kSplitsRows ? warpgroup * Tile::kFragments * 64 : 0;
  const int column = Tile::kSplitsColumns ? warpgroup * Tile::kColumns : 0;
  const uint64_t a_base = operand_descriptor<kAMn>(smem.stages[0].a, row);
  static_assert(!Tile::kSplitsColumns || !kBMn);
  const uint64_t b_base =
      operand_descriptor<kBMn>(smem.stages[0].b, 0) + column * kDescriptorStepRow;
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
      if (chunk - Tile::kSharers + Tile::kStages < chunks) {
        if (thread < sharers) {
          ptx::mbarrier_arrive_cluster(&smem.empty[previous], halves.first_cta + thread);
        }
      } else if (Tile::kHalves && chunk == halves.free_after && thread == 0) {
        ptx::mbarrier_arrive_cluster(&smem.room, halves.other_cta);
      }
    }
    previous = stage;
    stage += Tile::kSharers;
    if (stage >= Tile::kStages) stage -= Tile::kStages, parity ^= 1;
  }
  ptx::wgmma_wait_group<0>();
}

// Grid: (columns of tiles, rows of tiles, batch and halves of K, or parts of K), or rows first.
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
  const PlainLoader<T, Tile> of_plain(params, smem, loader % kOperands != 0);
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
  const bool halves = Tile::kHalves && params.halves;
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
  const Halves<T, Tile> half(chunks, sharers, halves);
  multiply<T, Tile, kAMn, kBMn>(smem, chunks, warpgroup, sharers, half, acc);
  if (Tile::kSharers > 1 && warpgroup >= chunks) {
#pragma unroll
    for (float& x : acc[0]) x = 0;
  }
  if (halves) [[unlikely]]
    half.add(smem, chunks_of(params), warpgroup, acc[0]);
  ptx::griddep_wait();  // D may be what the kernel before reads
  // For the bias and, of those that share the k of a tile, the stages of both. Sums of the other
  // half of K have been read, too.
  if (Tile::kSharers > 1 || params.bias != nullptr || halves) {
    ptx::named_barrier_sync(kMultipliers, Tile::kWarpgroups * kWarpgroup);
  }
  if (halves && !half.finishes(warpgroup)) return;
  T* d = static_cast<T*>(params.d) + place.batch.inner * params.d_batch_stride[0] +
         place.batch.outer * params.d_batch_stride[1];
  const Corner corner{place.m, place.n, min(params.m, place.m + params.tile_m),
                      min(params.n, place.n + params.tile_n)};
  if constexpr (Tile::kSharers == 1) {
#pragma unroll
    for (int i = 0; i < Tile::kFragments; ++i) {
      const int row = 64 * (Tile::kSplitsColumns ? i : warpgroup * Tile::kFragments + i);
      const int column = Tile::kSplitsColumns ? warpgroup * Tile::kColumns : 0;
      const Corner at{corner.m + row, corner.n + column, corner.m_end,
                      Tile::kSplitsColumns ? min(corner.n_end, corner.n + column + Tile::kColumns)
                                           : corner.n_end};
      store<T, Tile::kColumns>(params, smem.bias + (params.bias_of_rows ? row : column),
                               smem.staging(row, column), acc[i], at, d);
    }
  } else {
    add_and_store<T, Tile::kBlockN>(params, smem.bias, smem.stages, acc[0], warpgroup, corner, d);
  }
#endif
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
