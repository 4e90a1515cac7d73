// What the host tells the fp32 kernels.
#pragma once

#include "common/gemm_problem.h"
#include "common/math.h"

namespace xgemm::cuda::gemm::fp32 {

// How an operand's tile gets to shared memory, where it lies by k: [k][row].
enum class Access {
  kRows16,     // 4 rows a copy: rows are contiguous, and 16-byte aligned
  kAlongRows,  // elements, neighbouring threads along the rows
  kAlongK,     // elements, neighbouring threads along k
};

// An operand of the kernel: [rows, k] where rows are D's rows (A) or D's columns (B).
struct OperandParams {
  const float* data;
  int64_t row_stride, k_stride;  // elements
  Access access;
  bool unit_stride;  // along what Access names
  bool vectors;      // and all addresses along it, four elements apart, are multiples of 16 bytes
};

// The problem as the kernel sees it: transposed where D is column-major, so that D's columns are
// (nearly) contiguous; for few rows where D has fewer columns than rows.
//
// What every kernel reads comes first: kernels that take few microseconds wait for each line of it.
struct Params {
  int64_t m, n, k;
  OperandParams a, b;
  int64_t tiles_m, tiles_n;
  int64_t batches;
  int64_t k_per_split;  // a multiple of the kernel's block of k
  int64_t first_work;   // of this launch: a grid has less than 2^31 CTAs
  int splits;           // of K
  int whole;            // of the kernel that TMA feeds: tiles that are not split, the first ones
  int gemv_columns;     // of a CTA of the gemv kernels
  int batch_dims;
  float* d;
  int64_t d_row_stride, d_col_stride;
  float alpha;
  float store_scale;  // of sums on their way to D or to the partial sums
  bool transposed;    // m is the problem's n
  bool d_vector;      // four columns of D are one aligned 16-byte store
  bool scaled_sums;   // D is alpha times the sums, and alpha is not 0
  bool plain;         // the same, its columns contiguous, K not split
  Activation activation;
  float beta;
  float* partials;         // [splits, batches, m, partial_stride], for splits > 1
  int64_t partial_stride;  // n, rounded up to 4
  const float* c;          // read where beta is not 0
  int64_t c_row_stride, c_col_stride;
  const float* bias;  // or null; one of its strides is 0
  int64_t bias_row_stride, bias_col_stride;
  BatchDim batch[kMaxBatchDims];
};

}  // namespace xgemm::cuda::gemm::fp32
