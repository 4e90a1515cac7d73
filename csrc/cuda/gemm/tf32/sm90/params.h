// What the host tells the sm_90a kernel.
#pragma once

#include <cuda.h>

#include "common/gemm_problem.h"

namespace xgemm::cuda::gemm::tf32::sm90 {

inline constexpr int kConsumers = 2, kWarpgroup = 128, kThreads = (kConsumers + 1) * kWarpgroup;

// Neighbouring elements of D that are one aligned store: two along X, or four along Y.
enum class Vectors { kNone, kAlongX, kAlongY };

struct Params {
  CUtensorMap x, y;  // 3-D: inner, outer, batch
  int x_rows, y_rows, k_tiles;
  bool x_batched, y_batched;  // else the operand is the same for every batch
  int splits, k_tiles_per_split;
  int tiles_x, tiles_y;
  int batch, work_tiles;  // tiles of all batches and splits

  // Element (i, j) of the result, X's row and Y's, is i * x_stride + j * y_stride elements from its
  // batch's first one.
  float* d;
  int64_t d_x_stride, d_y_stride, d_batch_stride, d_split_stride;
  const float* c;  // read where beta is not 0
  int64_t c_x_stride, c_y_stride, c_batch_stride;
  const float* bias;  // or null; one of its strides is 0
  int64_t bias_x_stride, bias_y_stride;
  float alpha, beta;
  Activation activation;
  bool plain;  // D is the sums as they are
  Vectors d_vectors;
};

}  // namespace xgemm::cuda::gemm::tf32::sm90
