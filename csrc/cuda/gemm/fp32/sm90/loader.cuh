// From global memory to the stages of shared memory, whichever way the operands lie.
#pragma once

#include "cuda/gemm/fp32/sm90/work_tile.cuh"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/griddep.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/opaque.h"
#include "cuda/ptx/tma.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

// A thread of each warp asks TMA for groups of 32 rows: a load takes its thread 200 cycles, and
// one warp that asked for all would keep the others waiting.
template <typename Tile, bool kAAlongK, bool kBAlongK>
class TmaLoader {
 public:
  __device__ TmaLoader(const TmaParams& params, SharedStorage<Tile>& smem, const Work& work,
                       int thread)
      : params_(params),
        smem_(smem),
        m_(static_cast<int>(work.m)),
        n_(static_cast<int>(work.n)),
        k_(static_cast<int>(work.k)),
        k_tiles_(work.k_tiles(Tile::kStageDepth)),
        a_batch_(params.a.batched ? static_cast<int>(work.batch) : 0),
        b_batch_(params.b.batched ? static_cast<int>(work.batch) : 0),
        // From lane 0, so that the compiler knows it to be the same for the whole warp.
        warp_(__shfl_sync(~0u, thread / 32, 0)) {}

  // The first tiles.
  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < Tile::kStages; ++s) ptx::mbarrier_init(&smem_.full[s], kGroups);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
    ptx::griddep_wait();
    for (int tile = 0; tile < Tile::kPrefetched; ++tile) fetch(tile, tile);
  }

  // To a stage that everybody has left.
  __device__ void fetch(int tile, int stage) const {
    if (tile >= k_tiles_ || !ptx::elect_one()) return;
    uint64_t* full = &smem_.full[stage];
    auto& to = smem_.stages[stage];
#pragma unroll
    for (int first = 0; first < kGroups; first += Tile::kWarps) {
      if (first + warp_ >= kGroups) break;
      const int box = (first + warp_) / kGroupsOfBox,
                k = k_ + tile * Tile::kStageDepth + box * kDepth;
      const int group = (first + warp_) % kGroupsOfBox, group_of_b = group - kGroupsOfA;
      ptx::mbarrier_arrive_expect_tx(full, kGroup * sizeof(float));
      if (group_of_b < 0) {
        fetch<kAAlongK>(to.a[box] + group * kGroup, params_.a.map, full, m_ + group * 32, k,
                        a_batch_);
      } else {
        fetch<kBAlongK>(to.b[box] + group_of_b * kGroup, params_.b.map, full, n_ + group_of_b * 32,
                        k, b_batch_);
      }
    }
  }

  // Until a tile can be read, and its predecessor has been by everybody.
  __device__ void wait(int tile, int stage, uint32_t parity) const {
    if (tile < k_tiles_) ptx::mbarrier_wait(&smem_.full[stage], parity);
    __syncthreads();
  }

 private:
  static constexpr int kGroup = 32 * kDepth;  // elements
  static constexpr int kGroupsOfA = Tile::kBlockM / 32;
  static constexpr int kGroupsOfBox = kGroupsOfA + Tile::kBlockN / 32;
  static constexpr int kGroups = kGroupsOfBox * Tile::kBoxes;

  template <bool kAlongK>
  __device__ static void fetch(float* to, const CUtensorMap& map, uint64_t* full, int row, int k,
                               int batch) {
    kAlongK ? ptx::tma_load_3d(to, &map, full, k, row, batch)
            : ptx::tma_load_3d(to, &map, full, row, k, batch);
  }

  const TmaParams& params_;
  SharedStorage<Tile>& smem_;
  int m_, n_, k_, k_tiles_, a_batch_, b_batch_, warp_;
};

// A thread's copies of an operand's tiles, 16 or 4 bytes at a time: unit strides of any alignment.
// What is beyond K is zeroed; rows beyond the operand's last one are left as they are, as nobody
// stores what becomes of them.
template <int kRows, int kThreads, bool kAlongK>
class OperandCopies {
 public:
  __device__ OperandCopies(const OperandParams& operand, int64_t batch_offset, int64_t row,
                           int64_t rows, const Work& work, int thread)
      : vectors_(operand.vectors) {
    const int step = vectors_ ? 4 : 1;
    const int lanes = (kAlongK ? kDepth : kRows) / step;  // that share a line
    const int along = thread % lanes * step, line = thread / lanes;
    row_ = kAlongK ? line : along, k_ = kAlongK ? along : line;
    rows_left_ = static_cast<int>(min(rows - row, int64_t{kRows})) - row_;
    k_left_ = static_cast<int>(work.k_end - work.k) - k_;
    const float* first = operand.data + batch_offset + row * operand.row_stride;
    base_ = reinterpret_cast<const char*>(first);
    source_ = reinterpret_cast<const char*>(first + row_ * operand.row_stride +
                                            (work.k + k_) * operand.k_stride);
    const int64_t line_stride = kAlongK ? operand.row_stride : operand.k_stride;
    line_step_ = kBytes * (kThreads / lanes) * line_stride;
    tile_step_ = kBytes * kDepth * operand.k_stride;
    offset_ = (kAlongK ? line : along / 32 * kDepth + line) * kLineBytes +
              ((along % 32 / 4) ^ layout::swizzle_xor(line, 3)) * 16 + along % 4 * kBytes;
  }

  __device__ void fetch(uint32_t tile) {
    if (rows_left_ > 0) {
      if constexpr (kAlongK) {
        vectors_ ? fetch_rows<16>(tile + offset_) : fetch_rows<4>(tile + offset_);
      } else {
        vectors_ ? fetch_ks<16>(tile + offset_) : fetch_ks<4>(tile + offset_);
      }
    }
    source_ += tile_step_;
    k_left_ -= kDepth;
  }

 private:
  static constexpr int kBytes = sizeof(float), kLineBytes = kDepth * kBytes;

  // Lines are lines' steps apart; those after the first swap chunks as the swizzle says.
  template <int kStep>
  __device__ static uint32_t line(uint32_t to, int i) {
    return (to ^ i * kStep % 8 * 16) + i * kStep * kLineBytes;
  }

  template <int kSize>
  __device__ void fetch_rows(uint32_t to) const {
    constexpr int kStep = kThreads * kSize / kLineBytes;
    const int bytes = min(max(k_left_ * kBytes, 0), kSize);
    const char* from = bytes > 0 ? source_ : base_;
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      if (i * kStep < rows_left_) ptx::cp_async<kSize>(line<kStep>(to, i), from, bytes);
      from = ptx::opaque(from + line_step_);
    }
  }

  template <int kSize>
  __device__ void fetch_ks(uint32_t to) const {
    constexpr int kStep = kThreads * kSize / kBytes / kRows;
    const int bytes = min(rows_left_ * kBytes, kSize);
    const char* from = source_;
#pragma unroll
    for (int i = 0; i < kDepth / kStep; ++i) {
      const bool inside = i * kStep < k_left_;
      ptx::cp_async<kSize>(line<kStep>(to, i), inside ? from : base_, inside ? bytes : 0);
      from = ptx::opaque(from + line_step_);
    }
  }

  bool vectors_;
  int row_, k_, rows_left_, k_left_;
  const char *base_, *source_;
  int64_t line_step_, tile_step_;  // bytes
  uint32_t offset_;
};

// All threads copy: what TMA cannot read.
template <typename Tile, bool kAAlongK, bool kBAlongK>
class CopyLoader {
 public:
  __device__ CopyLoader(const TmaParams& params, SharedStorage<Tile>& smem, const Work& work,
                        int thread)
      : a_(params.problem.a, work.batch * params.problem.batch[0].a, work.m, params.problem.m, work,
           thread),
        b_(params.problem.b, work.batch * params.problem.batch[0].b, work.n, params.problem.n, work,
           thread),
        smem_(smem),
        k_tiles_(work.k_tiles(Tile::kStageDepth)) {}

  __device__ void start() {
    ptx::griddep_wait();
#pragma unroll 1
    for (int tile = 0; tile < Tile::kPrefetched; ++tile) fetch(tile, tile);
  }

  __device__ void fetch(int tile, int stage) {
    if (tile < k_tiles_) {
#pragma unroll
      for (int box = 0; box < Tile::kBoxes; ++box) {
        a_.fetch(ptx::smem_address(smem_.stages[stage].a[box]));
        b_.fetch(ptx::smem_address(smem_.stages[stage].b[box]));
      }
    }
    ptx::cp_async_commit_group();
  }

  __device__ void wait(int tile, int, uint32_t) const {
    // The first tile is waited for when all that are prefetched are under way, others before the
    // last one of these is.
    tile == 0 ? ptx::cp_async_wait_group<Tile::kPrefetched - 1>()
              : ptx::cp_async_wait_group<Tile::kPrefetched - 2>();
    __syncthreads();
  }

 private:
  OperandCopies<Tile::kBlockM, Tile::kThreads, kAAlongK> a_;
  OperandCopies<Tile::kBlockN, Tile::kThreads, kBAlongK> b_;
  SharedStorage<Tile>& smem_;
  int k_tiles_;
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
