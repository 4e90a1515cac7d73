// What the host tells the skinny kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/gemm_problem.h"
#include "cuda/gemm/sm90/skinny/tile.h"

namespace xgemm::cuda::gemm::sm90::skinny {

struct Params {
  CUtensorMap wide, narrow;  // 3-D: inner, outer, batch
  int wide_extent, narrow_extent, k, batch;
  bool wide_batched, narrow_batched;         // else the operand is the same for every batch
  int rows;                                  // of W in a tile, a multiple of 8
  int stages;                                // of the pipeline
  uint32_t wide_tiles, narrow_tiles, tiles;  // `tiles`: all of them, with the batch
  int splits, split_shift;                   // CTAs of a cluster, which share K: 1 << split_shift
  uint64_t wide_policy, narrow_policy;       // L2's
  void* d;
  int64_t d_wide_stride, d_narrow_stride, d_batch_stride;  // elements
  bool vector_store;                                       // D takes 8 elements at once along wide
  const void* bias;                                        // or null
  int64_t bias_wide_stride, bias_narrow_stride;            // one of them 0
  Activation activation;
};

}  // namespace xgemm::cuda::gemm::sm90::skinny
