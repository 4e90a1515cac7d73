// Ladder cpu, rung 1: the same loops in the order m, k, n.
//
// Source:    a published walk from three loops to oneDNN's speed, on one core of a Xeon 8260Y.
// Changed:   the loops over k and n change places.
// Published: 11.2 11.8 12.0 11.4 10.8 GFLOP/s at 64, 128, 256, 512, 1024 cubed; peak 80.
//
// The innermost loop now walks along a row of B and a row of C. It uses every byte of each cache
// line, the hardware's prefetcher sees a plain stream, and the n additions are independent of each
// other: the compiler makes vectors of 8 of them without being asked.
//
//   for i < m, for p < k, for j < n:  C[i][j] += A[i][p] B[p][j]
//
// What is wrong with it. For each multiply-add of 8 elements there are two loads and a store: of B,
// of C, and C again. The core can start two vector FMAs a cycle but only one store, so at most half
// of the peak is in reach even when everything lies in L1. And B is read from its beginning for
// each row of A: 4 MB, m times, at 1024 cubed.
#include <algorithm>

#include "cpu/ladder/cpu/rungs.h"

namespace xgemm::cpu::ladder {

XGEMM_TARGET_AVX2 void loops_mkn(const Product& product) {
  const auto [a, b, c, m, n, k] = product;
  std::fill(c, c + m * n, 0.0f);
  for (int64_t i = 0; i < m; ++i) {
    float* __restrict row = c + i * n;  // nothing else points there
    for (int64_t p = 0; p < k; ++p) {
      const float factor = a[i * k + p];
      const float* from = b + p * n;
      for (int64_t j = 0; j < n; ++j) row[j] += factor * from[j];
    }
  }
}

}  // namespace xgemm::cpu::ladder
