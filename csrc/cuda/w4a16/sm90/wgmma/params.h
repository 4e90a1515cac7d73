// What the host tells the kernel.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/activation.h"
#include "common/fast_divmod.h"
#include "common/status.h"
#include "cuda/w4a16/sm90/wgmma/tile.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

struct Params {
  // First what the first load of W waits for: a line of parameters that no warp of an SM has read
  // before, 64 bytes, takes 700 cycles to come.
  const uint8_t* weight;
  int64_t row_bytes;       // of qweight
  uint64_t weight_policy;  // L2's
  int unit_bytes;          // of the packed layout
  int weight_rows;         // of qweight
  int units;               // of K
  uint32_t tiles;          // row_tiles * column_groups
  int row_tiles;           // a cluster takes a tile of `sharers` times the columns
  int clusters;            // of the grid; set by launch_f16 and launch_bf16
  int sharers;             // CTAs that read the same X, by multicast: 1 << sharers_shift
  uint8_t sharers_shift, split_shift;  // 1 << split_shift CTAs of a cluster share K
  // Clusters take equal ranges of all tiles' units, where they begin and end within a tile, too.
  // What is not the beginning of a tile's K is left in `partials`, a CTA's sums of a tile each, for
  // the one that has the beginning; `flags`, one for each consumer warpgroup, are `nonce`
  // meanwhile.
  bool stream_k;

  alignas(64) FastDivmod by_units;
  uint32_t units_each, units_extra;  // of a range; the first `units_extra` have one more
  uint32_t lead;                     // of who has a tile's beginning: tile.h
  // By the tiles of so many rows; by the rows, and by those of the last ones.
  FastDivmod by_band, by_rows, by_last_rows;
  int group_rows;  // row tiles that neighbouring tiles run over, for L2

  // 2-D, the contiguous dimension first. X [m, k]: boxes of 64 k; D [m, n]: boxes of the columns
  // that a warpgroup stores at once.
  alignas(128) CUtensorMap x, d;
  int m, n;
  int strip_bytes;      // of the packed layout
  int groups_per_unit;  // 0: one group for all of K, whose scales end a row
  bool zeros;           // the format has zero points
  bool bf16_scales;     // else fp16
  int x_boxes;          // of tiles whose stages are units: boxes_of_x
  int column_groups;
  uint64_t* flags;
  float4* partials;
  uint64_t nonce;

  void* d_data;  // for !tma_store, strides in elements
  int64_t d_row_stride, d_col_stride;
  bool tma_store;    // else D is written element by element
  const void* bias;  // [n] or null
  int64_t bias_stride;
  Activation activation;
};
static_assert(offsetof(Params, by_units) == 64 && offsetof(Params, x) == 128);

// What a kernel is compiled for, beside the type of the activations.
struct Variant {
  int consumers, rows;
  int parts;            // of small-M tiles: warpgroups that share the K of 64 columns
  bool foreign_scales;  // of the 16-bit type that the activations do not have
  bool plain;           // is_plain()
};

struct Work {
  int clusters;            // at most; no more than the GPU runs at once
  bool overlaps_previous;  // programmatic dependent launch
};

// One translation unit for each type: they take most of the build's time.
Status launch_f16(const Params& params, const Variant& variant, const Work& work,
                  cudaStream_t stream);
Status launch_bf16(const Params& params, const Variant& variant, const Work& work,
                   cudaStream_t stream);
Status launch_small_m_f16(const Params& params, const Variant& variant, const Work& work,
                          cudaStream_t stream);
Status launch_small_m_bf16(const Params& params, const Variant& variant, const Work& work,
                           cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
