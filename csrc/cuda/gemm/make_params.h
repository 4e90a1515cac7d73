// From a problem to what the parameters of the kernels for every GPU (fp32, sm80) have in common.
#pragma once

#include <cstdlib>
#include <limits>
#include <utility>

#include "common/gemm_problem.h"

namespace xgemm::cuda::gemm {

// All but the operands' data, D's address, and what is a kernel's own.
template <typename Params>
void set_common(Params* params, const GemmProblem& p) {
  params->m = p.m, params->n = p.n, params->k = p.k;
  params->d_row_stride = p.d_row_stride, params->d_col_stride = p.d_col_stride;
  params->bias_col_stride = p.bias_stride;
  params->activation = p.activation;
  params->batch_dims = p.batch_dims;
  params->batches = 1;
  for (int i = 0; i < p.batch_dims; ++i) {
    params->batch[i] = p.batch[i];
    params->batches *= p.batch[i].size;
  }
}

// Whether D's columns are further apart than its rows.
inline bool is_column_major(const GemmProblem& p) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t row_step = p.m > 1 ? std::abs(p.d_row_stride) : kNone;
  const int64_t column_step = p.n > 1 ? std::abs(p.d_col_stride) : kNone;
  return row_step < column_step;
}

// D^T = B^T A^T.
template <typename Params>
void transpose(Params* params) {
  std::swap(params->m, params->n);
  std::swap(params->a, params->b);
  std::swap(params->d_row_stride, params->d_col_stride);
  std::swap(params->bias_row_stride, params->bias_col_stride);
  for (BatchDim& dim : params->batch) std::swap(dim.a, dim.b);
  if constexpr (requires { params->c_row_stride; }) {
    std::swap(params->c_row_stride, params->c_col_stride);
  }
}

}  // namespace xgemm::cuda::gemm
