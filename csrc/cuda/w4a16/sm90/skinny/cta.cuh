// A CTA's and a warp's share of the product, and its X.
#pragma once

#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/prefetch.h"
#include "cuda/w4a16/sm90/skinny/params.h"

namespace xgemm::cuda::w4a16::sm90::skinny {

// The clusters take the tiles in waves; the CTAs of a cluster have a range of K's units each. In
// the last wave tiles may have fewer strips.
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

  // Strips of a wave's tile, and the first of them.
  __device__ int strips(const Params& p, int wave) const {
    return wave == p.tiles_each ? p.extra_strips : p.tile_strips;
  }
  __device__ int strip(const Params& p, int wave) const {
    return wave * p.wave_strips + cluster * strips(p, wave);
  }
};

// A warp's part of its CTA's units.
struct Share {
  int first_unit, units;

  __device__ Share(const Params& p, const Cta& cta, int warp) {
    // A CTA with one more unit than another has one more warp with one more, or all.
    const int extra = p.warp_units_extra + (cta.rank < p.units_extra ? 1 : 0);
    first_unit = warp * p.warp_units_each + min(warp, extra);
    units = p.warp_units_each + (warp < extra ? 1 : 0);
  }
};

// Asks L2 for X, of which every CTA asks for other lines, and for the first units that the CTA
// reads; for one warp. Memory is then at work before the CTA's barriers stand, and while its warps
// wait for X: without it nothing would be under way from when the pipelines are full until X is
// there. It need not wait for the kernels before this one, whose writes L2 sees.
__device__ inline void prefetch(const Params& p, const Cta& cta, int lane) {
  if (p.x_vectors && lane < p.rows) {
    constexpr int kLine = 64;  // channels
    const uint16_t* row = p.x + lane * p.x_row_stride;
#pragma unroll 1
    for (int channel = static_cast<int>(blockIdx.x) * kLine; channel < p.k;
         channel += static_cast<int>(gridDim.x) * kLine) {
      ptx::prefetch_l2(row + channel);
    }
  }
  if (lane > 0 || cta.tiles == 0) return;
  // A unit's strips are contiguous, and the clusters that have them share out K.
  const int strip = cta.strip(p, 0), strips = cta.strips(p, 0);
  const int first = cta.units * (strip & 3) >> 2;
  const int units = min((cta.units * ((strip & 3) + strips) >> 2) - first, kPrefetchUnits);
  if (units == 0) return;
  ptx::bulk_prefetch_l2(
      p.weight + (strip >> 2) * p.row_bytes + int64_t{cta.first_unit + first} * p.unit_bytes,
      units * p.unit_bytes);
}

// Asks for `channels` of X from `first_channel` on, the first one to `x`, in pieces of 16 bytes,
// which the rows are aligned to; for one warp. What is beyond K is 0.
__device__ inline void copy_x(const Params& p, uint8_t* x, int first_channel, int channels,
                              int lane) {
#pragma unroll 1
  for (int channel = lane * 8; channel < channels; channel += 32 * 8) {
    const int valid = min(max(p.k - first_channel - channel, 0), 8) * 2;
    const uint16_t* from = p.x + (valid > 0 ? first_channel + channel : 0);
    uint32_t to = ptx::smem_address(x) + channel * 2;
#pragma unroll 1
    for (int row = 0; row < p.rows; ++row, from += p.x_row_stride, to += p.x_pitch) {
      ptx::cp_async<16>(to, from, valid);
    }
  }
  ptx::cp_async_commit_group();
}

// Gathers `channels` of them, the first one to `x`, where they lie any other way. Those that do not
// exist are 0. Not inlined: most products have no use for its code.
static __device__ __noinline__ void gather_x(const Params& p, uint8_t* x, int first_channel,
                                             int channels, int lane) {
  constexpr int kRowsAtOnce = 2;  // whose loads are under way together
#pragma unroll 1
  for (int channel = lane * 8; channel < channels; channel += 32 * 8) {
    int64_t offset[8];  // or -1
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int k = first_channel + channel + i;
      if (p.perm != nullptr && k < p.k) k = p.perm[k];
      offset[i] = static_cast<unsigned>(k) < static_cast<unsigned>(p.k) ? k * p.x_col_stride : -1;
    }
#pragma unroll 1
    for (int first = 0; first < p.rows; first += kRowsAtOnce) {
      uint32_t words[kRowsAtOnce][4];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce * 4; ++i) {
        const uint16_t* row = p.x + (first + i / 4) * p.x_row_stride;
        const int64_t even = offset[i % 4 * 2], odd = offset[i % 4 * 2 + 1];
        const bool exists = first + i / 4 < p.rows;
        const uint32_t low = exists && even >= 0 ? row[even] : 0;
        const uint32_t high = exists && odd >= 0 ? row[odd] : 0;
        words[i / 4][i % 4] = high << 16 | low;
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (first + i >= p.rows) break;
        *reinterpret_cast<uint4*>(x + (first + i) * p.x_pitch + channel * 2) =
            make_uint4(words[i][0], words[i][1], words[i][2], words[i][3]);
      }
    }
  }
}

}  // namespace xgemm::cuda::w4a16::sm90::skinny
