// A dense problem seen from its other side.
#pragma once

#include <utility>

#include "common/gemm_problem.h"

namespace xgemm::cuda::gemm::sm90 {

// D^T = B^T A^T. The bias stays as it is: it then belongs to rows.
inline GemmProblem swapped(GemmProblem p) {
  const auto transpose = [](GemmOperand& x) { std::swap(x.row_stride, x.col_stride); };
  std::swap(p.m, p.n);
  std::swap(p.a, p.b);
  transpose(p.a), transpose(p.b), transpose(p.c);
  std::swap(p.d_row_stride, p.d_col_stride);
  for (int i = 0; i < p.batch_dims; ++i) std::swap(p.batch[i].a, p.batch[i].b);
  return p;
}

}  // namespace xgemm::cuda::gemm::sm90
