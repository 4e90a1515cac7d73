// What the host tells the kernel for small products.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "common/fast_divisor.h"
#include "common/gemm_problem.h"
#include "cuda/gemm/sm90/single_tile/tile.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

// A line of parameters that no warp of an SM has read before, 64 bytes, takes 700 cycles to come.
// So what the loaders need for their first load is in one, and what a plain end needs in another.
struct Params {
  uint64_t a_policy, b_policy;  // of L2, for the operands
  int tile_m, tile_n;           // of D; no more than the kernel is compiled for
  int k;
  // Of a part of K; the first longer_parts have one more. All of K where it is one.
  int part_chunks, longer_parts;
  Clusters cluster;  // one of both is 1, the other 1 or kCluster
  int share_rows;    // of a tile that a cluster shares and that lies along K, for one CTA to load
  bool plain;        // neither batched nor in clusters: the grid's third dimension is parts of K
                     // or, with a raster, its groups
  bool rows_first;   // neighbouring CTAs have the same columns of D, not the same rows
  bool a_chunked, b_chunked;
  bool batched, a_batched[2], b_batched[2];
  Raster raster;
  alignas(64) void* d;
  int64_t d_row_stride, d_col_stride;
  int m, n;
  const void* bias;   // [n] or, bias_of_rows, [m]; bias_stride apart; or null
  int parts;          // of K, of a CTA each, whose sums a second launch adds; else 1
  bool plain_end;     // no bias, no activation, no parts
  bool transposed;    // D takes 8 elements at once along its columns
  bool vector_store;  // or along its rows
  bool bias_of_rows;
  Activation activation;
  alignas(128) CUtensorMap a, b;  // 5-D, as those of ../params.h
  int64_t bias_stride;
  int batch;                // products; the grid's third dimension runs over them
  FastDivisor batch_inner;  // of them, those along the inner dimension
  int64_t d_batch_stride[2];
  float* partials;  // of parts: [parts], part_stride apart, of sums that lie as D does
  int64_t part_stride, partial_row_stride, partial_col_stride;  // elements
};
static_assert(offsetof(Params, d) == 64 && offsetof(Params, a) == 128);

}  // namespace xgemm::cuda::gemm::sm90::single_tile
