// The warps that fill the pipeline of the wgmma kernel for a mixture of experts.
#pragma once

#include "cuda/ptx/bulk_load_policy.h"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/group_arrive.h"
#include "cuda/tile/pipeline_state.cuh"
#include "cuda/w4a16/grouped/columns.cuh"
#include "cuda/w4a16/grouped/sm90/walk.cuh"

namespace xgemm::cuda::w4a16::grouped::sm90 {

inline constexpr int kRowWarps = 2;  // that load X

// By one thread.
template <typename Tile>
__device__ inline void set_up_barriers(wgmma::UnitStorage<Tile>& pipeline) {
#pragma unroll
  for (int stage = 0; stage < Tile::kWStages; ++stage) {
    ptx::mbarrier_init(&pipeline.w_full[stage], 1 + ptx::group_arrivals(kRowWarps));
    ptx::mbarrier_init(&pipeline.w_empty[stage],
                       ptx::group_arrivals(Tile::kConsumers, wgmma::kWarpgroup));
  }
  ptx::fence_mbarrier_init();
}

// By a warp: a unit of W for each warpgroup into a stage, or the halves of two.
template <typename Tile>
__device__ inline void load_weights(const Params& p, Storage<Tile>& smem, int lane) {
  wgmma::UnitStorage<Tile>& pipeline = smem.pipeline;
  TileWalk<Tile> walk(p, smem.table, lane);
  PipelineState<Tile::kWStages> state;
  const int unit_bytes = p.format.unit_bytes, half_bytes = unit_bytes / 2;
  // Blocks of columns that do not exist are given the last one that does; y has no place for them.
  const int width = p.gated ? 32 : 64;
  const int last = static_cast<int>((p.columns - 1) / width), halves = static_cast<int>(last + 1);
  ExpertTile tile;
  while (walk.next(&tile)) {
    if (tile.expert == p.experts) continue;
    const uint8_t* expert = p.weight + tile.expert * p.expert_bytes;
    // What is read once shall not push out what L2 holds.
    const uint64_t policy = tile.alone ? ptx::kEvictFirst : ptx::kEvictNormal;
#pragma unroll 1
    for (int unit = 0; unit < p.units; ++unit) {
      ptx::mbarrier_wait(&pipeline.w_empty[state.stage], state.parity ^ 1);
      if (ptx::elect_one()) {
        uint64_t* full = &pipeline.w_full[state.stage];
        const uint8_t* from = expert + static_cast<int64_t>(unit) * unit_bytes;
        ptx::mbarrier_arrive_expect_tx(full, Tile::kConsumers * unit_bytes);
#pragma unroll 1
        for (int i = 0; i < Tile::kConsumers; ++i) {
          uint8_t* to = pipeline.w[state.stage][i];
          const int block = min(tile.column * Tile::kConsumers + i, last);
          if (!p.gated) {
            ptx::bulk_load(to, from + block * p.row_bytes, unit_bytes, full, policy);
            continue;
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int at = block + half * halves;  // in halves of rows of qweight
            ptx::bulk_load(to + half * half_bytes,
                           from + (at >> 1) * p.row_bytes + (at & 1) * half_bytes, half_bytes, full,
                           policy);
          }
        }
      }
      __syncwarp();
      state.advance();
    }
  }
}

// By kRowWarps warps: the tiles' rows of X, which need not be neighbours. Lane l of warp w copies
// 16 bytes of the rows 2 w + l / 16 + 4 i, and the warp finds those rows for itself.
template <typename Tile>
class RowLoader {
 public:
  __device__ RowLoader(const Params& p, Storage<Tile>& smem, int warp, int lane)
      : p_(p), smem_(smem), lane_(lane), first_(2 * warp + lane / 16) {}

  __device__ void run() {
    TileWalk<Tile> walk(p_, smem_.table, lane_);
    ExpertTile tile;
    int buffer = 0, ahead = 0;
    while (walk.next(&tile)) {
      if (tile.expert == p_.experts) continue;
      Rows& rows = smem_.rows[buffer];
      buffer = buffer + 1 == Tile::kRowBuffers ? 0 : buffer + 1;
      find(tile, rows);
      __syncwarp();
#pragma unroll 1
      for (int unit = 0; unit < p_.units; ++unit) {
        ptx::mbarrier_wait(&smem_.pipeline.w_empty[next_.stage], next_.parity ^ 1);
        copy(rows, unit);
        ptx::cp_async_commit_group();
        next_.advance();
        if (++ahead > kAhead) {
          ptx::cp_async_wait_group<kAhead>();
          publish(), --ahead;
        }
      }
    }
    ptx::cp_async_wait_group<0>();
    for (; ahead > 0; --ahead) publish();
  }

 private:
  using Rows = TileRows<Tile::kRows>;
  // Stages whose copies are under way while another's is: fewer than the pipeline has, else the
  // first of them would wait for the last to be empty.
  static constexpr int kAhead = wgmma::least(4, Tile::kWStages - 2);
  static constexpr int kRowsOfWarp = Tile::kRows / kRowWarps;

  // Buffers go around: what was in this one has been stored, since the pipeline has no room for the
  // units of as many tiles.
  __device__ void find(const ExpertTile& tile, Rows& rows) const {
    if (lane_ >= kRowsOfWarp) return;
    const int row = lane_ / 2 * 4 + first_ / 2 * 2 + lane_ % 2;
    const int slot =
        row < tile.count ? slot_at(p_.sorted, p_.experts, p_.slots, tile.begin + row) : -1;
    rows.x[row] = static_cast<const char*>(p_.x) +
                  int64_t{max(slot, 0) / p_.row_divisor} * p_.x_row_stride * 2;
    rows.slot[row] = slot;
  }

  // Into two boxes of 64 k, as TMA would lay them out: 16 bytes' place is XORed with the row.
  __device__ void copy(const Rows& rows, int unit) const {
    const int chunk = lane_ % 16, k = unit * static_cast<int>(w4::kUnitK) + chunk * 8;
    const int valid = max(min(p_.k - k, 8), 0) * 2;
    const uint32_t to = ptx::smem_address(smem_.pipeline.x[next_.stage][chunk / 8]) + first_ * 128;
    const uint32_t place[2] = {to + (chunk % 8 ^ first_) * 16,
                               to + 4 * 128 + (chunk % 8 ^ (first_ + 4)) * 16};
#pragma unroll 4
    for (int i = 0; i < Tile::kRows / 4; ++i) {
      ptx::cp_async<16>(place[i % 2] + i / 2 * (8 * 128), rows.x[first_ + 4 * i] + int64_t{k} * 2,
                        valid);
    }
  }

  // The first stage that was not: this thread's copies have landed.
  __device__ void publish() {
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::kAllArrive || lane_ == 0) ptx::mbarrier_arrive(&smem_.pipeline.w_full[landed_.stage]);
    landed_.advance();
  }

  const Params& p_;
  Storage<Tile>& smem_;
  int lane_, first_;
  PipelineState<Tile::kWStages> next_, landed_;
};

}  // namespace xgemm::cuda::w4a16::grouped::sm90
