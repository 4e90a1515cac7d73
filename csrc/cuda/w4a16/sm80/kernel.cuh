// W4A16 for every GPU from Ampere on: whole units of the packed weight and rows of X by cp.async
// into a pipeline of stages, mma.sync out of it, D^T = W X^T.
#pragma once

#include "common/math.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/split_k.cuh"
#include "cuda/tile/wait_for_copies.cuh"
#include "cuda/w4a16/sm80/epilogue.cuh"
#include "cuda/w4a16/sm80/staging.cuh"
#include "cuda/w4a16/sm80/warp_mma.cuh"

namespace xgemm::cuda::w4a16::sm80 {

// With group_size -1: the scales (and zeros) of the tile's columns, which end the weight's rows.
template <typename Tile>
__device__ void load_channel_scales(const Params& params, const Work& work, uint16_t* to,
                                    int thread) {
  for (int i = thread; i < Tile::kBlockN; i += Tile::kThreads) {
    const int64_t weight_row = (work.n + i) / kUnitColumns;
    uint16_t scale = 0, zero = 0;
    if (weight_row < params.weight_rows) {
      const auto* tail =
          reinterpret_cast<const uint16_t*>(params.weight + weight_row * params.row_bytes +
                                            int64_t{params.units} * params.unit_bytes);
      scale = tail[i % kUnitColumns];
      if (params.zeros) zero = tail[kUnitColumns + i % kUnitColumns];
    }
    to[i] = scale;
    to[Tile::kBlockN + i] = zero;
  }
}

// Sums over the warps along k, through shared memory, and stores D or split-K's part of it.
template <typename T, typename Tile>
__device__ void store_tile(const Params& params, const Work& work,
                           const float (&acc)[Tile::kStrips][Tile::kRows8][4], float* staging,
                           int thread, int warp_m, int warp_n, int warp_k) {
  constexpr int kPitch = Tile::kStagingPitch, kPart = Tile::kBlockM * kPitch;
  stage_sums<Tile>(
      acc,
      staging + warp_k * kPart + warp_m * Tile::kWarpRows * kPitch + warp_n * Tile::kWarpColumns,
      thread % 32);
  __syncthreads();
  constexpr int kQuads = Tile::kBlockN / 4;
#pragma unroll 1
  for (int i = thread; i < Tile::kBlockM * kQuads; i += Tile::kThreads) {
    const int row = i / kQuads, column = i % kQuads * 4;
    if (work.m + row >= params.m || work.n + column >= params.n) continue;
    float sum[4] = {};
    add_parts_of_quad<Tile::kWarpsK>(sum, staging + row * kPitch + column, kPart, Tile::kWarpsK);
    if (params.splits > 1) {
      *reinterpret_cast<float4*>(params.partials +
                                 (work.split * params.m + work.m + row) * params.partial_stride +
                                 work.n + column) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    } else {
      finish_row4<T>(params, sum, work.m + row, work.n + column);
    }
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtasPerSm)
    w4a16_kernel(const __grid_constant__ Params params) {
  XGEMM_DYNAMIC_SHARED(char, smem, 128);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int warp_n = warp % Tile::kWarpsN, warp_m = warp / Tile::kWarpsN % Tile::kWarpsM;
  const int warp_k = warp / (Tile::kWarpsN * Tile::kWarpsM);
  auto* channel_scales = reinterpret_cast<uint16_t*>(smem);
  char* pipeline = smem + Tile::kChannelBytes;

  const Work work = Work::at<Tile>(params, blockIdx.x);
  Loader<Tile> loader(params, work, ptx::smem_address(pipeline), thread);
  const int steps = ceil_div(work.unit_end - work.unit, Tile::kWarpsK);
  const int stages = params.stages;
#pragma unroll 1
  for (int s = 0; s < stages - 1; ++s) {
    if (s < steps) loader.fetch(s);
    ptx::cp_async_commit_group();  // even where it is empty: groups are counted
  }
  if (params.per_channel) load_channel_scales<Tile>(params, work, channel_scales, thread);

  const int column = warp_n * Tile::kWarpColumns;  // the warp's first one in the tile
  WarpMma<T, Tile> mma(params, channel_scales + column, warp_m * Tile::kWarpRows, lane);
  const int stage_bytes = Tile::stage_bytes(params.unit_bytes);
  const int warp_x = warp_k * Tile::kBlockM * kXRowBytes;
  const int warp_unit = Tile::kXBytes +
                        (column / kUnitColumns * Tile::kWarpsK + warp_k) * params.unit_bytes +
                        column % kUnitColumns / kStripColumns * params.strip_bytes;
  const bool has_columns = (work.n + column) / kUnitColumns < params.weight_rows;
  const int warp_steps =
      has_columns ? ceil_div(work.unit_end - work.unit - warp_k, Tile::kWarpsK) : 0;
  int read = 0, write = stages - 1;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    // Step's stage has landed, as far as this thread fetched it, and as far as the others did; all
    // have read the one before.
    wait_for_copies<kMaxStages - 2>(stages - 2);
    __syncthreads();
    if (step + stages - 1 < steps) loader.fetch(write);
    ptx::cp_async_commit_group();
    const char* stage = pipeline + read * stage_bytes;
    if (step < warp_steps) mma.multiply(ptx::smem_address(stage) + warp_x, stage + warp_unit);
    read = read + 1 == stages ? 0 : read + 1;
    write = write + 1 == stages ? 0 : write + 1;
  }
  ptx::cp_async_wait_group<0>();
  __syncthreads();  // the pipeline becomes the staging buffer
  store_tile<T, Tile>(params, work, mma.acc, reinterpret_cast<float*>(pipeline), thread, warp_m,
                      warp_n, warp_k);
}

}  // namespace xgemm::cuda::w4a16::sm80
