// What the host tells the kernel for small products.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/fast_divisor.h"
#include "common/gemm_problem.h"
#include "cuda/gemm/sm90/single_tile/tile.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

struct Params {
  uint64_t a_policy, b_policy;  // of L2, for the operands
  CUtensorMap a, b;             // 5-D, as those of ../params.h
  bool plain;                   // neither batched nor in clusters
  bool halves;                  // two CTAs of a cluster have half of K each
  int parts;                    // of K, of a CTA each, whose sums a second launch adds; else 1
  bool a_chunked, b_chunked;
  Clusters cluster;  // one of both is 1, the other a power of 2
  int share_rows;    // of a tile that a cluster shares and that lies along K, for one CTA to load
  bool batched, a_batched[2], b_batched[2];
  int batch;                // products; the grid's third dimension runs over them (and halves)
  FastDivisor batch_inner;  // of them, those along the inner dimension
  int m, n, k;
  int tile_m, tile_n;  // of D; no more than the kernel is compiled for
  bool rows_first;     // neighbouring CTAs have the same columns of D, not the same rows
  void* d;
  int64_t d_row_stride, d_col_stride, d_batch_stride[2];
  bool vector_store;  // D takes 8 elements at once along its rows
  bool plain_end;     // and no bias, no activation
  bool transposed;    // or along its columns
  const void* bias;   // [n] or, bias_of_rows, [m]; bias_stride apart; or null
  bool bias_of_rows;
  int64_t bias_stride;
  Activation activation;
  float* partials;  // of parts: [parts], part_stride apart, of sums that lie as D does
  int64_t part_stride, partial_row_stride, partial_col_stride;  // elements
};

}  // namespace xgemm::cuda::gemm::sm90::single_tile
