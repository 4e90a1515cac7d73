// Ladder cpu, rung 0: three loops, m, n, k.
//
// Source:    a published walk from three loops to oneDNN's speed, on one core of a Xeon 8260Y.
// Changed:   nothing yet: this is the first rung.
// Published: 1.97 1.65 1.44 0.95 0.62 GFLOP/s at 64, 128, 256, 512, 1024 cubed; peak 80.
//
// The definition of a matrix product: each element of C is the inner product of a row of A and a
// column of B.
//
//   for i < m, for j < n, for p < k:  C[i][j] += A[i][p] B[p][j]
//
// What is wrong with it. The innermost loop walks down a column of B, which is row-major: its
// elements are n floats apart, in another cache line each. Of the 64 bytes that a line brings, 4
// are used before the walk comes back for the next column, and for large matrices the line is gone
// from the cache by then. That is why the speed falls with the size. And the sum is one chain: each
// addition waits 4 cycles for the one before, so no vector unit can help (the compiler may not
// reorder the additions of floats).
#include "cpu/ladder/cpu/rungs.h"

namespace xgemm::cpu::ladder {

XGEMM_TARGET_AVX2 void loops_mnk(const Product& product) {
  const auto [a, b, c, m, n, k] = product;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int64_t p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
      c[i * n + j] = sum;
    }
  }
}

}  // namespace xgemm::cpu::ladder
