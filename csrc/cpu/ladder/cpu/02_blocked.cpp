// Ladder cpu, rung 2: blocked for the L2 cache.
//
// Source:    a published walk from three loops to oneDNN's speed, on one core of a Xeon 8260Y.
// Changed:   rung 1's loops run within blocks of B of 256 x 256, which stay in L2.
// Published: no number for this step alone.
//
// A block of B of 256 KB is read from memory once and then used by all m rows of A from L2. The
// loops within the block are rung 1's, letter for letter; two loops around them step over blocks.
//
//   for each block (p0, j0) of B:
//     for i < m, for p in the block, for j in the block:  C[i][j] += A[i][p] B[p][j]
//
// What is wrong with it. It moves fewer bytes from memory, but nothing changed for the core: there
// are still two loads and a store for each FMA. Where the size fits L2 anyway (up to 256 cubed) the
// extra loops only cost. The limit is now the path between L1 and the registers.
#include <algorithm>

#include "cpu/ladder/cpu/rungs.h"

namespace xgemm::cpu::ladder {

XGEMM_TARGET_AVX2 void blocked(const Product& product) {
  constexpr int64_t kBlockK = 256, kBlockN = 256;  // 256 KB of B: half of a small L2
  const auto [a, b, c, m, n, k] = product;
  std::fill(c, c + m * n, 0.0f);
  for (int64_t p0 = 0; p0 < k; p0 += kBlockK) {
    const int64_t depth = std::min(kBlockK, k - p0);
    for (int64_t j0 = 0; j0 < n; j0 += kBlockN) {
      const int64_t width = std::min(kBlockN, n - j0);
      for (int64_t i = 0; i < m; ++i) {
        float* __restrict row = c + i * n + j0;  // nothing else points there
        for (int64_t p = 0; p < depth; ++p) {
          const float factor = a[i * k + p0 + p];
          const float* from = b + (p0 + p) * n + j0;
          for (int64_t j = 0; j < width; ++j) row[j] += factor * from[j];
        }
      }
    }
  }
}

}  // namespace xgemm::cpu::ladder
