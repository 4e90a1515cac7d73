// A mixture of experts by mma.sync: each CTA multiplies some rows of one expert by 64 columns of
// its weight, which all of its warps share along k.
//
// A warp has a pipeline of its own: it waits for its own copies, so that no barrier of the CTA is
// in the mainloop. Each warp takes a part of k, and the warps' sums are added in order, whatever
// the tile: a row's bits do not depend on the other rows.
#pragma once

#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/opaque.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/split_k.cuh"
#include "cuda/tile/wait_for_copies.cuh"
#include "cuda/w4a16/grouped/columns.cuh"
#include "cuda/w4a16/grouped/overlap.cuh"
#include "cuda/w4a16/grouped/rows.cuh"
#include "cuda/w4a16/sm80/staging.cuh"
#include "cuda/w4a16/sm80/warp_mma.cuh"

namespace xgemm::cuda::w4a16::grouped {

// From global memory to a warp's pipeline.
template <typename Tile>
class WarpLoader {
 public:
  __device__ WarpLoader(const Params& p, const Halves& halves, int expert, uint32_t pipeline,
                        int lane)
      : p_(p), pipeline_(pipeline), lane_(lane), pieces_(p.format.unit_bytes / 16) {
    const int half_bytes = p.format.unit_bytes / 2;
    // Piece i of a unit comes from first_ + 16 i, or from second_ + 16 i in its second half.
    first_ = half_of_unit(p, expert, halves.first, half_bytes) + lane * 16;
    second_ = half_of_unit(p, expert, halves.second, half_bytes) + lane * 16 - half_bytes;
  }

  __device__ void fetch_weight(int stage, int unit) const {
    const uint32_t to = stage_at(stage) + Tile::kXBytes + lane_ * 16;
    const int64_t from = int64_t{unit} * p_.format.unit_bytes;
#pragma unroll 5
    for (int i = 0; i < kMaxPieces; ++i) {
      const int piece = lane_ + 32 * i;
      if (piece < pieces_) {
        const uint8_t* source = piece < pieces_ / 2 ? first_ : second_;
        ptx::cp_async<16>(to + i * 512, source + from + i * 512, 16);
      }
    }
  }

  // `rows`: where the tile's rows of X begin, or null, in shared memory.
  __device__ void fetch_x(const char* const* rows, int stage, int unit) const {
    const uint32_t to = stage_at(stage);
    // Else what depends on the lane alone keeps registers over all units, and some of them spill.
    const int lane = ptx::opaque(lane_);
    const int chunk = lane % 16, k = unit * static_cast<int>(w4::kUnitK) + chunk * 8;
    const int valid = max(min(p_.k - k, 8), 0) * 2;
#pragma unroll 2
    for (int i = 0; i < Tile::kBlockM / 2; ++i) {
      const int row = lane / 16 + 2 * i;
      const char* x = rows[row];
      ptx::cp_async<16>(to + sm80::x_offset(row, chunk),
                        x == nullptr ? static_cast<const char*>(p_.x) : x + int64_t{k} * 2,
                        x == nullptr ? 0 : valid);
    }
  }

  __device__ uint32_t stage_at(int stage) const {
    return pipeline_ + stage * Tile::stage_bytes(p_.format.unit_bytes);
  }

 private:
  __device__ static const uint8_t* half_of_unit(const Params& p, int expert, int64_t column,
                                                int half_bytes) {
    return row_of_units(p, expert, column) + (column % kColumns == 0 ? 0 : half_bytes);
  }

  static constexpr int kMaxPieces = ceil_div(sm80::kMaxUnitBytes / 16, 32);

  const Params& p_;
  uint32_t pipeline_;
  int lane_, pieces_;
  const uint8_t *first_, *second_;
};

// Where the tile's rows of X begin, in shared memory; null for those that are not there.
template <typename Tile>
__device__ void find_x(const Params& p, const RowRange& rows, const char** to, int thread) {
  if (thread >= Tile::kBlockM) return;
  const char* x = nullptr;
  if (thread < rows.count) {
    const int slot = slot_at(p.sorted, p.experts, p.slots, rows.begin + thread);
    if (slot >= 0) {
      x = static_cast<const char*>(p.x) + int64_t{slot / p.row_divisor} * p.x_row_stride * 2;
    }
  }
  to[thread] = x;
}

// With group_size -1: the scales (and zeros) of the CTA's columns, which end the weight's rows.
__device__ inline void load_channel_scales(const Params& p, const Halves& halves, int expert,
                                           uint16_t* to, int thread) {
  if (thread >= kColumns) return;
  const int64_t column = halves.column(thread / 32) + thread % 32;
  const auto* tail = reinterpret_cast<const uint16_t*>(row_of_units(p, expert, column) +
                                                       int64_t{p.units} * p.format.unit_bytes);
  to[thread] = tail[column % kColumns];
  if (p.format.zeros) to[kColumns + thread] = tail[kColumns + column % kColumns];
}

template <typename T, typename Tile>
__device__ void store_rows(const Params& p, const Halves& halves, const RowRange& rows,
                           const float* staging, int thread) {
  const int quads = p.gated ? kColumns / 8 : kColumns / 4;
#pragma unroll 1
  for (int i = thread; i < rows.count * quads; i += kThreads) {
    const int row = i / quads, column = i % quads * 4;
    const int slot = slot_at(p.sorted, p.experts, p.slots, rows.begin + row);
    if (slot < 0) continue;
    float sum[4] = {}, up[4] = {};
    // Of the warps, in order.
    constexpr int kPitch = Tile::kStagingPitch, kOfWarp = Tile::kBlockM * kPitch;
    const float* from = staging + row * kPitch + column;
    add_parts_of_quad<kWarps>(sum, from, kOfWarp, kWarps);
    if (p.gated) add_parts_of_quad<kWarps>(up, from + 32, kOfWarp, kWarps);
    finish_columns<T>(p, halves, rows.expert, slot, column, sum, up);
  }
}

// kOverlap: it may start, and then wait, before earlier work in the stream has ended.
template <typename T, typename Tile, bool kOverlap, bool kFp4>
__global__ void __launch_bounds__(kThreads, Tile::kCtasPerSm)
    grouped_kernel(const __grid_constant__ Params p) {
  XGEMM_DYNAMIC_SHARED(char, smem, 128);
  wait_for_earlier<kOverlap>();
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int tile = blockIdx.x / p.column_blocks;
  const RowRange rows = find_rows(p.sorted, p.experts, p.slots, Tile::kBlockM, tile, lane);
  if (rows.count == 0) return;
  const Halves halves = Halves::at(p, blockIdx.x % p.column_blocks);
  if (rows.expert == p.experts) return clear_rows<T>(p, halves, rows, thread);

  auto* x_rows = reinterpret_cast<const char**>(smem);
  auto* channel_scales = reinterpret_cast<uint16_t*>(smem + Tile::kRowsBytes);
  char* const pipelines = smem + Tile::kRowsBytes + kChannelBytes;
  const int stages = p.stages, stage_bytes = Tile::stage_bytes(p.format.unit_bytes);
  char* pipeline = pipelines + warp * stages * stage_bytes;
  const WarpLoader<Tile> loader(p, halves, rows.expert, ptx::smem_address(pipeline), lane);
  const int first = begin_of_part(p.units, warp), steps = begin_of_part(p.units, warp + 1) - first;
  // The weight first: where it lies is known before the rows are.
#pragma unroll 1
  for (int s = 0; s < min(stages, steps); ++s) loader.fetch_weight(s, first + s);
  find_x<Tile>(p, rows, x_rows, thread);
  if (p.format.per_channel) load_channel_scales(p, halves, rows.expert, channel_scales, thread);
  __syncthreads();
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    if (s < steps) loader.fetch_x(x_rows, s, first + s);
    ptx::cp_async_commit_group();  // even where it is empty: groups are counted
  }

  sm80::WarpMma<T, Tile, kFp4> mma(p.format, channel_scales, 0, lane);
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kMaxStages - 1>(stages - 1);  // this lane's copies of the stage have landed,
    __syncwarp();                                 // and so have the others'
    const char* at = pipeline + stage * stage_bytes;
    mma.multiply(ptx::smem_address(at), at + Tile::kXBytes);
    __syncwarp();  // all have read it
    const int next = step + stages;
    if (next < steps) {
      loader.fetch_weight(stage, first + next);
      loader.fetch_x(x_rows, stage, first + next);
    }
    ptx::cp_async_commit_group();
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  mma.finish();
  ptx::cp_async_wait_group<0>();
  __syncthreads();  // the pipelines become the staging buffer
  auto* staging = reinterpret_cast<float*>(pipelines);
  sm80::stage_sums<Tile>(mma.acc, staging + warp * Tile::kBlockM * Tile::kStagingPitch, lane);
  __syncthreads();
  store_rows<T, Tile>(p, halves, rows, staging, thread);
}

}  // namespace xgemm::cuda::w4a16::grouped
