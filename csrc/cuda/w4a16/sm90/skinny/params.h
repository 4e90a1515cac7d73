// What the host tells the skinny kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/activation.h"
#include "common/status.h"
#include "cuda/w4a16/sm90/skinny/split.h"

namespace xgemm::cuda::w4a16::sm90::skinny {

struct Params {
  // First what the first copies need: a CTA starts with an empty cache of constants, too.
  const uint8_t* weight;
  int64_t row_bytes;                         // of qweight
  int unit_bytes, strip_bytes, piece_bytes;  // of the packed layout; a tile's part of a unit
  int warps, stages;
  int log2_cluster;
  int clusters;
  int tiles_each, tiles_extra;    // of a cluster; the first `tiles_extra` have one more
  int tile_strips, extra_strips;  // of a tile; of that one
  int wave_strips;                // of all clusters' tiles
  int units_each, units_extra;    // of K; of a CTA of the cluster, likewise
  // Of a warp, likewise, in a CTA that has `units_each`: one with one more has one more warp with
  // one more.
  int warp_units_each, warp_units_extra;

  // X [rows, k]; strides in elements.
  const uint16_t* x;
  int64_t x_row_stride, x_col_stride;
  int rows, k;
  int x_pitch;
  bool x_vectors;  // rows can be copied 16 bytes at a time
  const int32_t* perm;
  SharedPlan shared;

  int groups;  // of a unit; 0: one for all of K, whose scales end a row
  bool zeros, bf16_scales;
  bool zeros_in_units;  // else they end a row, or do not exist
  int buffers, reducers;

  uint16_t* d;
  int64_t d_row_stride, d_col_stride;
  bool d_vectors;  // 4 adjacent columns are 8 aligned bytes
  const uint16_t* bias;
  int64_t bias_stride;
  Activation activation;
  int64_t n;
};

struct Work {
  int strips, most_clusters;
  bool wide;   // tiles; else narrow ones
  bool plain;  // is_plain()
};
// Sets the clusters and their tiles in `params`: no more clusters than the GPU runs at once.
Status launch_f16(const Params& params, const Work& work, cudaStream_t stream);
Status launch_bf16(const Params& params, const Work& work, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm90::skinny
