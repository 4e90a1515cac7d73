// Where the rows of operands begin, which tells how many lines of L2 a load of 128 bytes takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/gemm_problem.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90 {

// The shares of rows that begin with a line of 128 bytes, and within a sector of 32.
struct RowBegins {
  double with_line, in_sector;

  // That a load takes on average: 1 of a row that begins with a line, the others as said.
  double lines(double of_split_sectors, double of_uneven_row) const {
    return with_line + in_sector * of_split_sectors + (1 - with_line - in_sector) * of_uneven_row;
  }
};
// `stride`: elements from a row to the next one, a multiple of 8.
inline RowBegins row_begins(int64_t stride) {
  constexpr int64_t kLine = 64;
  const int64_t step = std::gcd<int64_t>(stride, kLine);
  return {static_cast<double>(step) / kLine, step == 8 ? 0.5 : 0.0};
}

// 33 to 128 rows or columns that are not over soon; no batches.
inline bool has_33_to_128_rows(const GemmProblem& p) {
  constexpr int64_t kMin = 33, kMax = 128, kMinOther = 256;
  const int64_t skinny = std::min(p.m, p.n), other = std::min(std::max(p.m, p.n), p.k);
  return skinny >= kMin && skinny <= kMax && other >= kMinOther && p.batch_dims == 0;
}

// Such rows along K in whole lines, beside a large operand that lies so, too.
inline bool is_large_33_to_128(const GemmProblem& p) {
  constexpr int64_t kMinBytes = 400'000'000;
  return has_33_to_128_rows(p) && a_k_major(p) && b_k_major(p) &&
         row_begins(p.a.row_stride).with_line == 1 && row_begins(p.b.col_stride).with_line == 1 &&
         2 * std::max(p.m, p.n) * p.k >= kMinBytes;
}

// Whether constants of their own tell best how long kernels take: such rows beside a large operand;
// or that do not lie along K; or beside an operand whose rows begin within a line, as theirs may.
inline bool takes_33_to_128_costs(const GemmProblem& p) {
  if (!has_33_to_128_rows(p)) return false;
  const bool a_along = a_k_major(p), b_along = b_k_major(p);
  return is_large_33_to_128(p) || !(p.m < p.n ? a_along : b_along) ||
         row_begins(a_along ? p.a.row_stride : p.a.col_stride).with_line < 1 ||
         row_begins(b_along ? p.b.col_stride : p.b.row_stride).with_line < 1;
}

}  // namespace xgemm::cuda::gemm::sm90
