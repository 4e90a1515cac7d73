// What the host tells the skinny kernel.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "common/gemm_problem.h"
#include "cuda/gemm/sm90/skinny/tile.h"

namespace xgemm::cuda::gemm::sm90::skinny {

// First what the first loads wait for: a line of parameters that no warp of an SM has read before,
// 64 bytes, takes 700 cycles to come.
struct Params {
  uint64_t wide_policy, narrow_policy;  // L2's
  int wide_extent, narrow_extent, k, batch;
  int rows;                                  // of W in a tile, a multiple of 8
  int stages;                                // of the pipeline
  uint32_t wide_tiles, narrow_tiles, tiles;  // `tiles`: all of them, with the batch
  int splits;                                // CTAs of a cluster, which share K: 1 << split_shift
  uint8_t split_shift;
  bool wide_batched, narrow_batched;  // else the operand is the same for every batch
  alignas(64) void* d;
  int64_t d_wide_stride, d_narrow_stride, d_batch_stride;  // elements
  const void* bias;                                        // or null
  int64_t bias_wide_stride, bias_narrow_stride;            // one of them 0
  bool vector_store;                                       // D takes 8 elements at once along wide
  Activation activation;
  alignas(128) CUtensorMap wide, narrow;  // 3-D: inner, outer, batch
};
static_assert(offsetof(Params, d) == 64 && offsetof(Params, wide) == 128);

}  // namespace xgemm::cuda::gemm::sm90::skinny
