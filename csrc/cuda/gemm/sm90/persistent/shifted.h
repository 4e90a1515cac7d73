// A K-major A whose rows TMA cannot read as they lie, without a copy of it.
//
// Rows that are `residues` apart lie a multiple of 16 bytes apart, so a map reads them, from the
// aligned address before the first of them on: what it reads of a row begins `shift` elements
// before the row. The rows of a tile have one residue, and k of B, which is not contiguous, is
// shifted as much. Of the first k-tile, where the neighbour's elements would come before the row's,
// there is a copy, which has zeros there: A's heads.
#pragma once

#include <numeric>

#include "common/math.h"
#include "cuda/gemm/sm90/persistent/tiles.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90::persistent {

inline int64_t residues_of(const GemmProblem& p) {
  return kVector / std::gcd<int64_t>(p.a.row_stride, kVector);
}

// Elements of 16 bytes before row `residue` begins.
inline int shift_of(const GemmProblem& p, int64_t residue) {
  const auto begin = reinterpret_cast<uintptr_t>(p.a.data) / 2 + residue * p.a.row_stride;
  return static_cast<int>(begin % kVector);
}

// Whether A may be read so: beside a B that TMA reads, not along K.
inline bool fits_shifted(const GemmProblem& p) {
  return p.batch_dims == 0 && p.a.col_stride == 1 && p.a.row_stride >= p.k && !a_fits_tma(p) &&
         p.b.col_stride == 1 && p.n > 1 && b_fits_tma(p) && p.d_col_stride == 1 &&
         p.m % residues_of(p) == 0;
}

// The products of the rows of each residue, as a batch.
inline GemmProblem by_residues(GemmProblem p) {
  const int64_t residues = residues_of(p);
  p.batch_dims = 1;
  p.batch[0] = {residues, p.a.row_stride, 0, 0, p.d_row_stride};
  p.m /= residues;
  p.a.row_stride *= residues, p.d_row_stride *= residues;
  return p;
}

inline int64_t head_bytes(const GemmProblem& p) {
  return round_up<int64_t>(p.m * kBlockK * 2, 256);
}

}  // namespace xgemm::cuda::gemm::sm90::persistent
