// A CTA's share of the product, and its X.
#pragma once

#include "cuda/ptx/cp_async_bulk.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/w4a16/sm90/rows/params.h"

namespace xgemm::cuda::w4a16::sm90::rows {

// The clusters take the tiles in turns; the CTAs of a cluster have a range of K's units each.
struct Cta {
  int cluster, rank;
  int tiles;
  int first_unit, units;

  __device__ explicit Cta(const Params& p)
      : cluster(static_cast<int>(blockIdx.x) >> p.log2_cluster),
        rank(static_cast<int>(blockIdx.x) & ((1 << p.log2_cluster) - 1)),
        tiles(p.tiles_each + (cluster < p.tiles_extra ? 1 : 0)),
        first_unit(rank * p.units_each + min(rank, p.units_extra)),
        units(p.units_each + (rank < p.units_extra ? 1 : 0)) {}

  __device__ int tile(const Params& p, int turn) const { return cluster + turn * p.clusters; }
};

// Asks for the rows of X, whole pieces of 16 bytes of them; for one warp.
__device__ inline int whole_channels(const Params& p, const Cta& cta) {
  constexpr int kUnit = w4::kUnitK;
  return min(p.k - cta.first_unit * kUnit, cta.units * kUnit) / 8 * 8;
}
__device__ inline void copy_x(const Params& p, const Cta& cta, uint8_t* x, uint64_t* barrier,
                              int lane) {
  const uint32_t bytes = whole_channels(p, cta) * 2;
  if (lane == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(barrier, bytes * p.rows);
  }
  __syncwarp();
  if (lane < p.rows && bytes > 0) {
    const uint16_t* row = p.x + lane * p.x_row_stride + cta.first_unit * w4::kUnitK;
    ptx::bulk_load(x + lane * p.x_pitch, row, bytes, barrier);
  }
}

// Gathers what copy_x does not bring: all of X where it lies any other way, else the channels that
// fill up the last unit. Channels that do not exist are 0.
__device__ inline void gather_x(const Params& p, const Cta& cta, uint8_t* x, int thread,
                                int threads) {
  constexpr int kUnit = w4::kUnitK;
  const int from = p.x_bulk ? whole_channels(p, cta) : 0;
#pragma unroll 1
  for (int channel = from + thread * 8; channel < cta.units * kUnit; channel += threads * 8) {
    int64_t offset[8];  // or -1
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int k = cta.first_unit * kUnit + channel + i;
      if (p.perm != nullptr && k < p.k) k = p.perm[k];
      offset[i] = static_cast<unsigned>(k) < static_cast<unsigned>(p.k) ? k * p.x_col_stride : -1;
    }
#pragma unroll 1
    for (int row = 0; row < p.rows; ++row) {
      const uint16_t* from_row = p.x + row * p.x_row_stride;
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t low = offset[2 * i] >= 0 ? from_row[offset[2 * i]] : 0;
        const uint32_t high = offset[2 * i + 1] >= 0 ? from_row[offset[2 * i + 1]] : 0;
        words[i] = high << 16 | low;
      }
      *reinterpret_cast<uint4*>(x + row * p.x_pitch + channel * 2) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

}  // namespace xgemm::cuda::w4a16::sm90::rows
