// What the host tells the kernel for few rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/activation.h"
#include "common/status.h"
#include "cuda/w4a16/sm90/rows/split.h"

namespace xgemm::cuda::w4a16::sm90::rows {

struct Params {
  const uint8_t* weight;
  int64_t row_bytes;            // of qweight
  int unit_bytes, strip_bytes;  // of the packed layout
  int groups;                   // of a unit; 0: one for all of K, whose scales end a row
  bool zeros, bf16_scales;
  bool zeros_in_units;  // else they end a row, or do not exist

  // X [rows, k]; strides in elements.
  const uint16_t* x;
  int64_t x_row_stride, x_col_stride;
  bool x_bulk;  // rows can be copied in bulk
  const int32_t* perm;
  int rows, k;

  uint16_t* d;
  int64_t d_row_stride, d_col_stride;
  bool d_vectors;  // 4 adjacent columns are 8 aligned bytes
  const uint16_t* bias;
  int64_t bias_stride;
  Activation activation;
  int64_t n;

  int warps, stages;
  int early_stages;  // whose copies are asked for before X
  int log2_cluster;
  int clusters;
  int tiles_each, tiles_extra;         // of a cluster; the first `tiles_extra` have one more
  int units, units_each, units_extra;  // of K; of a CTA of the cluster, likewise
  int run;                             // units that a warp takes at once
  int parts_most, parts_least;         // runs of a tile's K, in a CTA that has one more unit or not
  int x_pitch, buffers;
  SharedPlan shared;

  __device__ int parts(int units) const { return units > units_each ? parts_most : parts_least; }
};

struct Work {
  int tiles, most_clusters;
  bool overlaps_previous;
};
// Sets the clusters and their tiles in `params`: no more clusters than the GPU runs at once.
Status launch_f16(const Params& params, const Work& work, cudaStream_t stream);
Status launch_bf16(const Params& params, const Work& work, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm90::rows
