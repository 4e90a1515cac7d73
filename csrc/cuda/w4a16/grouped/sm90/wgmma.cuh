// A mixture of experts by wgmma (sm_90a): persistent CTAs, each tile some rows of one expert by 256
// columns of its weight. Codes become operands in registers, as in the dense kernel of small M.
#pragma once

#include "cuda/ptx/setmaxnreg.h"
#include "cuda/shared_memory.h"
#include "cuda/w4a16/grouped/overlap.cuh"
#include "cuda/w4a16/grouped/sm90/loaders.cuh"
#include "cuda/w4a16/sm90/wgmma/small_m.cuh"

namespace xgemm::cuda::w4a16::grouped::sm90 {

// A warpgroup's sums of a part of k, on those of the parts before it: [row][kStagingPitch].
template <typename Tile>
__device__ void add_to_staging(const float (&sums)[Tile::kRows / 2], float* staging, bool first,
                               int thread) {
  constexpr int kPitch = Tile::kStagingPitch;
  // Of a warp's 16 columns by 8 rows: those of a fragment of mma.
  float* own = staging + thread % 4 * 2 * kPitch + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < Tile::kRows / 2; ++i) {
    float* to = own + (i / 4 * 8 + i % 2) * kPitch + i / 2 % 2 * 8;
    *to = (first ? 0.0f : *to) + sums[i];
  }
}

template <typename T, typename Tile>
__device__ void store_tile(const Params& p, const Halves& halves, const ExpertTile& tile,
                           const int* slots, const float* staging, int thread) {
  if (halves.first >= p.columns) return;
  const int quads = p.gated ? kColumns / 8 : kColumns / 4;
#pragma unroll 2
  for (int i = thread; i < tile.count * quads; i += wgmma::kWarpgroup) {
    const int row = i / quads, column = i % quads * 4, slot = slots[row];
    if (slot < 0) continue;
    const float* from = staging + row * Tile::kStagingPitch + column;
    const float4 sum = *reinterpret_cast<const float4*>(from);
    const float4 other = p.gated ? *reinterpret_cast<const float4*>(from + 32) : sum;
    float x[4] = {sum.x, sum.y, sum.z, sum.w};
    const float up[4] = {other.x, other.y, other.z, other.w};
    finish_columns<T>(p, halves, tile.expert, slot, column, x, up);
  }
}

// With group_size -1, of a warp's 16 columns.
__device__ inline const uint8_t* channel_scales(const Params& p, const Halves& halves, int expert,
                                                int thread) {
  const int warp = thread / 32;
  const int64_t last = (p.n - 1) / kColumns * kColumns;  // of the rows of qweight
  const int64_t column = min(halves.column(warp / 2) + warp % 2 * 16, last + 48);
  return row_of_units(p, expert, column) + int64_t{p.units} * p.format.unit_bytes +
         column % kColumns * 2;
}

// By a warpgroup: its 64 columns of each tile.
template <typename T, typename Tile>
__device__ void multiply_tiles(const Params& p, const UnitFormat& format, Storage<Tile>& smem,
                               int warpgroup, int thread) {
  wgmma::SmallMConsumer<T, Tile, UnitFormat> consumer(format, smem.pipeline, warpgroup, 0, thread);
  auto* staging = reinterpret_cast<float*>(smem.pipeline.out[warpgroup]);
  TileWalk<Tile> walk(p, smem.table, thread % 32);
  ExpertTile tile;
  int buffer = 0;
  while (walk.next(&tile)) {
    const Halves halves = Halves::at(p, tile.column * Tile::kConsumers + warpgroup);
    if (tile.expert == p.experts) {
      clear_rows<T>(p, halves, {tile.expert, tile.begin, tile.count}, thread);
      continue;
    }
    if constexpr (!Tile::kPlain) {
      if (format.groups_per_unit == 0) {
        consumer.load_channel_scales(channel_scales(p, halves, tile.expert, thread));
      }
    }
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      float sums[Tile::kRows / 2];
      consumer.accumulate(sums, begin_of_part(p.units, part + 1) - begin_of_part(p.units, part));
      add_to_staging<Tile>(sums, staging, part == 0, thread);
    }
    ptx::named_barrier_sync(1 + warpgroup, wgmma::kWarpgroup);
    store_tile<T, Tile>(p, halves, tile, smem.rows[buffer].slot, staging, thread);
    buffer = buffer + 1 == Tile::kRowBuffers ? 0 : buffer + 1;
    ptx::named_barrier_sync(1 + warpgroup, wgmma::kWarpgroup);  // the staging buffer is free
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    wgmma_kernel(const __grid_constant__ Params p, const __grid_constant__ UnitFormat format) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem =
      *reinterpret_cast<Storage<Tile>*>(raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  // From lane 0, so that the compiler knows it to be the same for the whole warp.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp == 0 && ptx::elect_one()) set_up_barriers<Tile>(smem.pipeline);
  wait_for_earlier<true>();
  fill_table<Tile>(p, smem.table, threadIdx.x);  // barriers of the CTA: the others stand, too
  if (warp < 4) {
    ptx::setmaxnreg_dec<Tile::kProducerRegisters>();
    if (warp == 0) {
      load_weights<Tile>(p, smem, lane);
    } else if (warp <= kRowWarps) {
      RowLoader<Tile>(p, smem, warp - 1, lane).run();
    }
  } else {
    ptx::setmaxnreg_inc<Tile::kConsumerRegisters>();
    multiply_tiles<T, Tile>(p, format, smem, warp / 4 - 1, threadIdx.x % wgmma::kWarpgroup);
  }
#endif
}

}  // namespace xgemm::cuda::w4a16::grouped::sm90
