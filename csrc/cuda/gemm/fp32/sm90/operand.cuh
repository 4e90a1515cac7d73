// From global memory to the stages of shared memory, whichever way the operands lie.
#pragma once

#include "cuda/gemm/fp32/sm90/tile.cuh"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/ld_st.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

// Tile t of an operand along its rows goes to stage t % 3, two tiles ahead. One along k goes to the
// raw stage, one tile ahead, and all threads transpose it to stage t % 2. kTransposes: there may be
// one along k; without, the main loop has a few branches less, which are worth 3 %.
template <typename Tile, bool kTransposes>
class Loader {
  static constexpr int kStages = 3;

 public:
  __device__ Loader(const TmaParams& params, SharedStorage<Tile>& smem, const Work& work)
      : params_(params),
        smem_(smem),
        m_(static_cast<int>(work.m)),
        n_(static_cast<int>(work.n)),
        k_(static_cast<int>(work.k)),
        k_tiles_(max(work.k_tiles(Tile::kDepth), 1)),  // zeros, of a part beyond K
        a_batch_(params.a.batched ? static_cast<int>(work.batch) : 0),
        b_batch_(params.b.batched ? static_cast<int>(work.batch) : 0),
        a_along_k_(kTransposes && params.a.along_k),
        b_along_k_(kTransposes && params.b.along_k) {}

  __device__ int k_tiles() const { return k_tiles_; }

  // The rest is of one thread: barriers, and the first tiles.
  __device__ void start() const {
    for (int s = 0; s < kStages; ++s) ptx::mbarrier_init(&smem_.full[s], 1);
    ptx::mbarrier_init(&smem_.full_raw, 1);
    ptx::fence_mbarrier_init();
    ptx::griddep_wait();
    fetch_raw(0);
    for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
  }
  // In step `tile`, to the stages that everybody has left.
  __device__ void fetch_ahead(int tile) const {
    fetch_raw(tile + 1);
    fetch(tile + kStages - 1);
  }

  // Of all threads, until a tile can be read; those of the raw stage after another barrier.
  __device__ void finish(int tile, int stage, uint32_t parity) const {
    if constexpr (kTransposes) {
      ptx::mbarrier_wait(&smem_.full_raw, tile & 1);
      if (a_along_k_) transpose(smem_.a, tile);
      if (b_along_k_) transpose(smem_.b, tile);
      if (a_along_k_ && b_along_k_) return;
    }
    ptx::mbarrier_wait(&smem_.full[stage], parity);
  }

  // From the addresses of places in a tile's stages to those in the next one's.
  __device__ void advance(int tile, bool wraps, uint32_t* a, uint32_t* b) const {
    const auto step = [&](bool along_k, int bytes) {
      if (along_k) return tile % 2 == 0 ? bytes : -bytes;
      return wraps ? -(kStages - 1) * bytes : bytes;
    };
    *a += step(a_along_k_, decltype(smem_.a)::kStageBytes);
    *b += step(b_along_k_, decltype(smem_.b)::kStageBytes);
  }

 private:
  __device__ void fetch(int tile) const {
    if ((a_along_k_ && b_along_k_) || tile >= k_tiles_) return;
    const int stage = tile % kStages, k = k_ + tile * Tile::kDepth;
    uint64_t* full = &smem_.full[stage];
    ptx::mbarrier_arrive_expect_tx(
        full, (a_along_k_ ? 0 : smem_.a.kStageBytes) + (b_along_k_ ? 0 : smem_.b.kStageBytes));
    if (!a_along_k_) {
      ptx::tma_load_3d(smem_.a.stage[stage], &params_.a.map, full, m_, k, a_batch_);
    }
    if (!b_along_k_) {
      ptx::tma_load_3d(smem_.b.stage[stage], &params_.b.map, full, n_, k, b_batch_);
    }
  }

  __device__ void fetch_raw(int tile) const {
    if (!kTransposes || tile >= k_tiles_) return;
    uint64_t* full = &smem_.full_raw;
    ptx::mbarrier_arrive_expect_tx(
        full, (a_along_k_ ? smem_.a.kStageBytes : 0) + (b_along_k_ ? smem_.b.kStageBytes : 0));
    if (a_along_k_) fetch_raw(smem_.a, params_.a.map, m_, tile, a_batch_);
    if (b_along_k_) fetch_raw(smem_.b, params_.b.map, n_, tile, b_batch_);
  }

  template <typename Stages>
  __device__ void fetch_raw(Stages& stages, const CUtensorMap& map, int row, int tile,
                            int batch) const {
    float* to = stages.stage[Stages::kRaw];
    const int k = k_ + tile * Stages::kDepth;
#pragma unroll
    for (int at = 0; at < Stages::kDepth; at += 32) {
      ptx::tma_load_3d(to + at * Stages::kRows, &map, &smem_.full_raw, k + at, row, batch);
    }
  }

  // Four rows by four k at a time. Neither the reads nor the writes of eight lanes collide in
  // banks.
  template <typename Stages>
  __device__ static void transpose(Stages& stages, int tile) {
    constexpr int kQuads = Stages::kRows / 4;                              // of rows
    constexpr int kBlocks = kQuads * Stages::kDepth / 4 / Tile::kThreads;  // of a thread
    const uint32_t from = ptx::smem_address(stages.stage[Stages::kRaw]);
    const uint32_t to = ptx::smem_address(stages.stage[tile & 1]);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int block = static_cast<int>(threadIdx.x) + i * Tile::kThreads;
      const int low = block % 8, high = block / 64;
      const int quad = high % (kQuads / 8) * 8 + low, box = high / (kQuads / 8);
      const int chunk = low ^ block / 8 % 8;  // of four k
      // Of row 4 quad + i the swizzle puts a chunk at chunk ^ row % 8.
      const uint32_t raw =
          from + (box * Stages::kRows + quad * 4) * 128 + (chunk ^ quad % 2 * 4) * 16;
      float4 x[4];
#pragma unroll
      for (int row = 0; row < 4; ++row) {
        x[row] = ptx::ld_shared_in_order((raw ^ row * 16) + row * 128);
      }
      constexpr int kStep = Stages::kRows * 4;  // bytes of a k
      const uint32_t turned = to + (box * 32 + chunk * 4) * kStep + quad * 16;
      const auto store = [&](int k, float x0, float x1, float x2, float x3) {
        ptx::st_shared(turned + k * kStep, uint4{__float_as_uint(x0), __float_as_uint(x1),
                                                 __float_as_uint(x2), __float_as_uint(x3)});
      };
      store(0, x[0].x, x[1].x, x[2].x, x[3].x);
      store(1, x[0].y, x[1].y, x[2].y, x[3].y);
      store(2, x[0].z, x[1].z, x[2].z, x[3].z);
      store(3, x[0].w, x[1].w, x[2].w, x[3].w);
    }
  }

  const TmaParams& params_;
  SharedStorage<Tile>& smem_;
  int m_, n_, k_, k_tiles_, a_batch_, b_batch_;
  bool a_along_k_, b_along_k_;
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
