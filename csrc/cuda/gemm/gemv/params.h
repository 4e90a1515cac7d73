// What the host tells the matrix-vector kernels.
#pragma once

#include <cstdint>

#include "common/gemm_problem.h"

namespace xgemm::cuda::gemm::gemv {

// The product in the kernels' own terms. The matrix that is streamed is W; it has B's columns, or
// A's rows where B has few columns: `wide` of them. The `narrow` vectors are X.
//   D[narrow, wide] = activation(X[narrow, k] W[k, wide] + bias)
// Strides are in elements, and small enough that 32 bits hold an offset inside a tile.
struct Params {
  const void* w;
  int64_t w_stride;   // of the dimension that is not contiguous
  uint64_t w_policy;  // of L2 for it
  const void* x;
  int64_t x_stride, x_k_stride;
  bool x_vectors;  // 16 bytes along k can be loaded from X at once
  void* d;
  int64_t d_narrow_stride, d_wide_stride;
  const void* bias;                              // or null
  int64_t bias_narrow_stride, bias_wide_stride;  // one of them is 0
  Activation activation;
  int narrow, wide, k;
  int splits;       // of k
  int k_per_split;  // a multiple of 8
  float* partials;  // [splits][batches][narrow][wide], where no cluster sums the splits
  int64_t batches;  // below 2^31
  uint32_t first_batch;
  int batch_dims;
  struct {
    int64_t size, w, x, d;
  } batch[kMaxBatchDims];  // outermost first
};

}  // namespace xgemm::cuda::gemm::gemv
