// The pipeline of stages in shared memory, and the warp that fills it by TMA.
#pragma once

#include "cuda/gemm/sm90/skinny/cluster_reduction.cuh"
#include "cuda/gemm/sm90/skinny/params.h"
#include "cuda/gemm/sm90/skinny/schedule.cuh"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"
#include "cuda/tile/pipeline_state.cuh"

namespace xgemm::cuda::gemm::sm90::skinny {

// What the kernel is compiled for. The rows of a tile, at most kRows, are a run-time number: with
// it tiles are cut so that all SMs have the same share of W.
template <int kWarpgroups_, int kColumns_>
struct TileConfig {
  static constexpr int kWarpgroups = kWarpgroups_;                // of 64 rows of W
  static constexpr int kColumns = kColumns_;                      // of D', rows of X: wgmma's N
  static constexpr int kBoxes = boxes_of(kWarpgroups, kColumns);  // of 64 k, in a stage
  static constexpr int kRows = kWarpgroups * kWarpgroupRows;
  static constexpr int kStageK = kBoxes * kSwizzleElements;
  static constexpr int kThreads = kWarpgroups * kWarpgroup + 32;
};

// What follows the pipeline in shared memory; then come the warpgroups' inboxes.
template <typename T, typename Tile>
struct Control {
  uint64_t full[kMaxStages], empty[kMaxStages];
  uint64_t received[Tile::kWarpgroups], drained[Tile::kWarpgroups];
  Staging<T, Tile::kColumns> staging[Tile::kWarpgroups * 4];  // a warp's each
  __device__ float* inbox(int warpgroup, int splits) {
    return reinterpret_cast<float*>(this + 1) +
           warpgroup * (inbox_bytes(Tile::kColumns, splits) / 4);
  }
};

// Stages of `rows` rows of W, then kColumns of X, both as kBoxes boxes of 64 k. What wgmma
// multiplies beyond `rows` is whatever lies there, and its results are not used.
template <typename Tile>
struct Pipeline {
  int rows, stages;
  uint8_t* base;

  static constexpr int kNarrowBoxBytes = Tile::kColumns * kSwizzleElements * 2;
  __device__ int wide_box_bytes() const { return rows * kSwizzleElements * 2; }
  __device__ int stage_bytes() const { return Tile::kBoxes * (wide_box_bytes() + kNarrowBoxBytes); }
  __device__ uint8_t* end() const { return base + stages * stage_bytes(); }
  __device__ uint8_t* wide(int stage, int box) const {
    return base + stage * stage_bytes() + box * wide_box_bytes();
  }
  __device__ uint8_t* narrow(int stage, int box) const {
    return wide(stage, Tile::kBoxes) + box * kNarrowBoxBytes;
  }
};

// Run by one thread.
template <typename T, typename Tile, bool kWideMn, bool kNarrowMn>
class Producer {
 public:
  __device__ Producer(const Params& params, Pipeline<Tile> pipeline, Control<T, Tile>& control,
                      int rank)
      : params_(params),
        pipeline_(pipeline),
        control_(control),
        step_(params, share_of_k<Tile::kStageK>(params, rank)) {}

  // The first loads, each as soon as its barrier stands, and the barriers of the others.
  __device__ void start() {
#pragma unroll 1
    for (; filled_ < kFirst && filled_ < params_.stages && !step_.done(); ++filled_) {
      ptx::mbarrier_init(&control_.full[filled_], 1);
      ptx::fence_mbarrier_init();
      load(filled_);
      step_.advance();
    }
#pragma unroll 1
    for (int stage = filled_; stage < params_.stages; ++stage) {
      ptx::mbarrier_init(&control_.full[stage], 1);
    }
    ptx::fence_mbarrier_init();
  }

  // The rest of the first pass over the pipeline, which waits for nothing.
  __device__ void fill() {
#pragma unroll 1
    for (; filled_ < params_.stages && !step_.done(); ++filled_, step_.advance()) load(filled_);
  }

  __device__ void stream() {
    DynamicPipelineState at{params_.stages};
#pragma unroll 1
    for (; !step_.done(); step_.advance(), at.advance()) {
      ptx::mbarrier_wait(&control_.empty[at.stage], at.parity);
      load(at.stage);
    }
  }

 private:
  static constexpr int kFirst = 2;  // stages that start() asks for

  __device__ void load(int stage) const {
    uint64_t* full = &control_.full[stage];
    ptx::mbarrier_arrive_expect_tx(full, pipeline_.stage_bytes());
    const TilePosition& tile = step_.tile();
#pragma unroll
    for (int box = 0; box < Tile::kBoxes; ++box) {
      load_box<kWideMn, Tile::kRows>(pipeline_.wide(stage, box), &params_.wide, full,
                                     params_.wide_policy, tile.wide, box,
                                     params_.wide_batched ? tile.batch : 0);
    }
#pragma unroll
    for (int box = 0; box < Tile::kBoxes; ++box) {
      load_box<kNarrowMn, Tile::kColumns>(pipeline_.narrow(stage, box), &params_.narrow, full,
                                          params_.narrow_policy, tile.narrow, box,
                                          params_.narrow_batched ? tile.batch : 0);
    }
  }

  // 64 k of a tile's rows of an operand. Where they are not along K, 64 of the kRows at once, in
  // a loop without a branch: what a load costs its thread delays the stage.
  template <bool kMnMajor, int kRows>
  __device__ void load_box(uint8_t* dst, const CUtensorMap* map, uint64_t* full, uint64_t policy,
                           int row, int box, int batch) const {
    const int k = step_.k() + box * kSwizzleElements;
    if constexpr (kMnMajor) {
#pragma unroll
      for (int i = 0; i < kRows; i += kSwizzleElements) {
        ptx::tma_load_3d(dst + i * kSwizzleElements * 2, map, full, policy, row + i, k, batch);
      }
    } else {
      ptx::tma_load_3d(dst, map, full, policy, k, row, batch);
    }
  }

  const Params& params_;
  Pipeline<Tile> pipeline_;
  Control<T, Tile>& control_;
  Steps<Tile::kColumns, Tile::kStageK> step_;
  int filled_ = 0;  // stages, of the first pass
};

}  // namespace xgemm::cuda::gemm::sm90::skinny
