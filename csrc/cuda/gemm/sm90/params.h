// What the host tells the sm_90a kernel, and the sizes both must agree on.
#pragma once

#include <cuda.h>

#include "common/math.h"
#include "cuda/gemm/api.h"

namespace xgemm::cuda::gemm::sm90 {

inline constexpr int kWarpgroup = 128;
inline constexpr int kConsumers = 2;
inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
inline constexpr int kSwizzleElements = 64;  // 128 bytes of a 16-bit type: the swizzle's row
inline constexpr int kBlockM = 64 * kConsumers;
inline constexpr int kBlockK = 64;

// Columns of D that one TMA store writes: a swizzle's row, or half of one where that divides the
// tile's width or leaves room for another stage.
constexpr int store_columns(int block_n) { return block_n % 128 == 0 ? 64 : 32; }

// 64-wide chunks of an MN-major operand's tile that one load brings, where the tile's `rows` are
// shared out among `sharers` CTAs.
XGEMM_HOST_DEVICE constexpr int chunks_per_load(int rows, int sharers) {
  const int chunks = rows / kSwizzleElements;
  return chunks % sharers == 0 ? chunks / sharers : 1;
}

struct Params {
  // 5-D: inner, outer, chunk, and two dimensions of the batch. Where an operand is chunked
  // (MN-major, its extent a multiple of 64) inner runs over a chunk and chunk over the rest; else
  // chunk has an extent of 1.
  CUtensorMap a, b;
  CUtensorMap d;  // 4-D: inner, outer, and two dimensions of the batch
  bool a_chunked, b_chunked;
  int m, n, k;
  int batch, batch_inner;  // extents: of the whole batch, and of its inner dimension
  int group_rows;          // rows of clusters that neighbouring tiles run over, for L2
  // By dimension of the batch, the inner one first: else the operand is the same all along it.
  bool a_batched[2], b_batched[2];
  bool tma_store;  // else D is written element by element
  void* d_data;    // for !tma_store, strides in elements
  int64_t d_row_stride, d_col_stride, d_batch_stride[2];
  const void* bias;  // [n] or null
  int64_t bias_stride;
  Activation activation;
};

// One translation unit for each type: they take most of the build's time.
Status launch_f16(const Params& params, const Config& config, bool a_mn, bool b_mn,
                  cudaStream_t stream);
Status launch_bf16(const Params& params, const Config& config, bool a_mn, bool b_mn,
                   cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::sm90
