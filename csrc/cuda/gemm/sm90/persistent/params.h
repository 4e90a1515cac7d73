// What the host tells the sm_90a kernel, and the sizes both must agree on.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#include "common/activation.h"
#include "common/fast_divisor.h"
#include "common/math.h"
#include "common/status.h"
#include "cuda/gemm/sm90/persistent/tiles.h"

namespace xgemm::cuda::gemm::sm90::persistent {

inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;

// Columns of D that one TMA store writes: a swizzle's row, or half of one where that divides the
// tile's width or leaves room for another stage.
constexpr int store_columns(int block_n) { return block_n % 128 == 0 ? 64 : 32; }

// A line of parameters that no warp of an SM has read before, 64 bytes, takes 700 cycles to come.
// So what the first load waits for is in the first one.
struct Params {
  // Those that are walked over whole, by pairs that share B or by single CTAs: each has `waves` of
  // them, the first `waves_rest` one more. Behind them, up to `end`, is half a tile for each CTA.
  // No division is left to the kernel, whose first loads would wait for it.
  uint32_t whole_tiles, end;
  int k_tiles;
  // Neighbouring tiles run over a group of rows of clusters, for L2; the last group may have fewer.
  FastDivisor group_tiles, group_rows, last_group_rows;
  uint32_t last_group;  // its index
  // Clusters are of two CTAs. Their tiles are of the same columns and they share B by multicast, or
  // else they walk alone, but for the last tile, of which they take half of K each.
  bool pair, shares_b;
  bool batched;
  bool a_shifted;  // A is read shifted (shifted.h): `a` are its heads then, `a_of` each residue's
                   // rows
  bool a_chunked, b_chunked;
  bool a_evict_first, b_evict_first;  // from L2, else kEvictNormal

  alignas(64) uint32_t waves;
  uint32_t waves_rest;
  int m, n;
  // By dimension of the batch, the inner one first: else the operand is the same all along it.
  bool a_batched[2], b_batched[2];
  int a_shift, a_shift_step;  // of the first row, and from one to the next
  bool tma_store;             // else D is written element by element
  bool transposed;            // TMA stores columns of D, which are contiguous
  bool plain_end;             // no bias, no activation
  Activation activation;

  // 5-D: inner, outer, chunk, and two dimensions of the batch. Where an operand is chunked
  // (MN-major, its extent a multiple of 64) inner runs over a chunk and chunk over the rest; else
  // chunk has an extent of 1.
  alignas(128) CUtensorMap a, b;
  CUtensorMap d;                             // 4-D: inner, outer, and two dimensions of the batch
  const void* bias;                          // or null
  int64_t bias_row_stride, bias_col_stride;  // one of them 0
  void* d_data;                              // for !tma_store, strides in elements
  int64_t d_row_stride, d_col_stride, d_batch_stride[2];
  FastDivisor per_matrix, batch_inner;
  int k;
  CUtensorMap a_of[kVector];
};
static_assert(offsetof(Params, waves) == 64 && offsetof(Params, a) == 128);

// One translation unit for each type: they take most of the build's time.
Status launch_f16(const Params& params, const Config& config, bool a_mn, bool b_mn,
                  cudaStream_t stream);
Status launch_bf16(const Params& params, const Config& config, bool a_mn, bool b_mn,
                   cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90::persistent
