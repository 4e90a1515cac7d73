// A dense problem as the skinny kernel sees it.
#pragma once

#include "common/gemm_problem.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90::skinny {

struct Matrix {  // [extent, k]
  const void* data;
  int64_t extent, stride, k_stride, batch_stride;
  bool k_major;  // else its extent is contiguous
};

struct View {
  Matrix wide, narrow;
  bool wide_is_b;
  int64_t batch;
};

// Whether W goes past what L2 holds (evict_first). Else its lines push out what is dirty there, and
// the stream waits for the writes: 1.5 to 4 us after 256 MB were written. But with evict_first, and
// L2 full of dirty lines, memory is read 1 to 2 % slower, which costs more from 340 MB (8 to 32
// rows of X) or 470 MB (64 to 128) on.
inline bool streams_past_l2(const View& view, int64_t k) {
  constexpr int64_t kMaxBytes = 400'000'000;
  return 2 * view.wide.extent * k * (view.wide.batch_stride != 0 ? view.batch : 1) < kMaxBytes;
}

inline View view_of(const GemmProblem& p) {
  const BatchDim batch = p.batch_dims > 0 ? p.batch[0] : BatchDim{1, 0, 0, 0, 0};
  const Matrix a{p.a.data, p.m, p.a.row_stride, p.a.col_stride, batch.a, a_k_major(p)};
  const Matrix b{p.b.data, p.n, p.b.col_stride, p.b.row_stride, batch.b, b_k_major(p)};
  const bool wide_is_b = p.n >= p.m;
  return {wide_is_b ? b : a, wide_is_b ? a : b, wide_is_b, batch.size};
}

}  // namespace xgemm::cuda::gemm::sm90::skinny
