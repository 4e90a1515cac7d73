// What a CTA computes, and its way from global memory to the pipeline of stages.
#pragma once

#include <limits>

#include "common/math.h"
#include "cuda/gemm/sm80/epilogue.cuh"
#include "cuda/gemm/sm80/loader.cuh"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::gemm::sm80 {

// What a CTA works on: the tile at (m, n) of a batch, and the part [k, k_end) of K.
struct Work {
  int64_t m, n, k, k_end;
  uint32_t batch;
  int split;

  template <typename Tile>
  __device__ static Work at(const Params& params, uint32_t index) {
    Work work;
    const uint32_t per_plane = params.tiles_m * params.tiles_n;
    const uint32_t plane = index / per_plane;
    constexpr uint32_t kGroupRows = 2048 / Tile::kBlockM;
    const layout::PlaceOf<uint32_t> place = layout::grouped_tile<uint32_t>(
        index % per_plane, params.tiles_m, params.tiles_n, kGroupRows);
    work.m = int64_t{place.row} * Tile::kBlockM;
    work.n = int64_t{place.column} * Tile::kBlockN;
    work.batch = plane / params.splits;
    work.split = static_cast<int>(plane % params.splits);
    work.k = work.split * params.k_per_split;
    work.k_end = min(work.k + params.k_per_split, params.k);
    return work;
  }

  template <typename Tile>
  __device__ int k_tiles() const {
    return ceil_div(static_cast<int>(max(k_end - k, int64_t{0})), Tile::kBlockK);
  }
};

// Fetches the k tiles of all that a CTA computes, one after another: those of the next tile of D
// are under way while this one ends and is stored.
template <typename Tile, typename LayoutA, typename LayoutB, bool kGeneral>
class Fetcher {
  using LoaderA = Loader<LayoutA, Tile::kThreads, kGeneral>;
  using LoaderB = Loader<LayoutB, Tile::kThreads, kGeneral>;

 public:
  static constexpr uint32_t kBytesA = LayoutA::kElements * 2;
  static constexpr uint32_t kStageBytes = kBytesA + LayoutB::kElements * 2;
  static constexpr uint32_t kPipelineBytes = Tile::kStages * kStageBytes;
  // Of a fetch, which copy_piece starts one by one, so that they may lie among other instructions.
  static constexpr int kPieces = kGeneral ? 0 : LoaderA::kPerThread + LoaderB::kPerThread;

  // `stages`: shared-memory address of stage 0. It stands before the CTA's first tile.
  __device__ Fetcher(const Params& params, uint32_t stages)
      : params_(params), stages_(stages), index_(blockIdx.x - gridDim.x) {}

  // How many k tiles there are to fetch before next_work.
  __device__ int left() const { return left_; }
  __device__ void take(int k_tiles) { left_ -= k_tiles; }

  // To the CTA's next tile of D that has some k, where the last one's k is all on its way: before
  // anything is fetched.
  __device__ void next_work(int thread) {
    while (left_ == 0) {
      index_ += gridDim.x;
      if (index_ < params_.tiles) {
        start(thread);
      } else {
        a_.stop(), b_.stop();
        left_ = std::numeric_limits<int>::max(), idle_ = true;
      }
    }
  }

  // A fetch is begin_stage, every copy_piece and end_stage. There is one for every k tile that is
  // computed, the last ones of zeros: a branch would keep the compiler from mixing copies with mma.
  __device__ void begin_stage() {
    if constexpr (kGeneral) {
      // What the last fetch left in registers goes to its stage first; where there was none, to one
      // that is not yet, or no longer, read.
      const uint32_t last = (write_ == 0 ? kPipelineBytes : write_) - kStageBytes;
      a_.flush(stages_ + last);
      b_.flush(stages_ + last + kBytesA);
      if (!idle_) {
        a_.fetch(stages_ + write_);
        b_.fetch(stages_ + write_ + kBytesA);
      }
    } else {
      a_.next_tile(), b_.next_tile();
    }
  }
  __device__ void copy_piece(int i) {
    if constexpr (!kGeneral) {
      if (i < LoaderA::kPerThread) {
        a_.copy(stages_ + write_, i);
      } else {
        b_.copy(stages_ + write_ + kBytesA, i - LoaderA::kPerThread);
      }
    }
  }
  __device__ void end_stage() {
    write_ = next(write_);
    ptx::cp_async_commit_group();  // even where it is empty: groups are counted
  }

  // Byte offset of the stage behind this one.
  __device__ static uint32_t next(uint32_t stage) {
    return stage == kPipelineBytes - kStageBytes ? 0 : stage + kStageBytes;
  }

 private:
  __device__ void start(int thread) {
    const Work work = Work::at<Tile>(params_, index_);
    a_.start(params_.a, batch_offset(params_, work.batch, &BatchDim::a),
             {work.m, params_.m, work.k, work.k_end, params_.k}, thread);
    b_.start(params_.b, batch_offset(params_, work.batch, &BatchDim::b),
             {work.n, params_.n, work.k, work.k_end, params_.k}, thread);
    left_ = work.k_tiles<Tile>();
  }

  const Params& params_;
  LoaderA a_;
  LoaderB b_;
  uint32_t stages_, write_ = 0;  // the latter is the byte offset of a stage
  int left_ = 0;
  uint32_t index_;
  bool idle_ = false;
};

}  // namespace xgemm::cuda::gemm::sm80
